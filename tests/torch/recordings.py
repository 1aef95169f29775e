"""Predictions as PyTorch's own tools would have recorded them, read by `validate`: as Python pickles them in every
protocol, and as the profiler writes traces. And a trace that the profiler really writes on a CPU.

    python recordings.py PROGRAM
"""
import gzip
import json
import os
import pickle
import subprocess
import sys
import tempfile

import torch
from torch.profiler import ProfilerActivity, profile, schedule

LLAMA = "--model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 8192".split()
CASES = {
    "fsdp2": LLAMA,
    "two micro-batches, two replicas": LLAMA + "--grad-accum 2 --replicate 2".split(),
    "fsdp1": LLAMA + ["--dialect", "fsdp1"],
    "prefetch, checkpointing": LLAMA + "--forward-prefetch 1 --activation-checkpointing full --clip-norm 1".split(),
}
COLLECTIVES = {"all_gather": "AllGather_RING_LL", "reduce_scatter": "ReduceScatter_Sum_bf16_RING_LL",
               "all_reduce": "AllReduce_Sum_f32_RING_LL", "clip_reduce": "AllReduce_Sum_f32_RING_LL",
               "reduce_loss": "AllReduce_Sum_f32_RING_LL"}


def called(program, *words):
    return subprocess.run([program, *words], capture_output=True, text=True)


def trace_of(prediction, steps=3, slow=None, factor=1.0):
    """The steady step as kernels on streams, launched by a host that is 100 ms ahead."""
    events = [{"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}}]
    period = prediction["step_time_s"] * 1e6
    order = prediction["order"]
    for step in range(steps):
        begin = 4631077112940.943 + step * period
        mark = begin - 1e5
        events.append({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d" % step, "pid": 7, "tid": 7,
                       "ts": mark, "dur": period, "args": {"External id": 1}})
        for i, place in enumerate(prediction["issued"]):
            if place < 0:
                continue
            stream, rest = order[place].split(": ", 1)
            action = rest.split(" ")[0]
            start, end = prediction["timeline"]["spans_s"][2 * i:2 * i + 2]
            name = "void at::native::elementwise_kernel<128>(int)"
            if action in COLLECTIVES:
                name = "ncclDevKernel_%s(ncclDevKernelArgsStorage<4096ul>)" % COLLECTIVES[action]
            duration = (end - start) * (factor if action == slow else 1)
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7,
                           "ts": mark + 1, "dur": 3.0, "args": {"correlation": len(events) + 1}})
            events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": ord(stream),
                           "ts": begin + start * 1e6, "dur": duration * 1e6,
                           "args": {"correlation": len(events), "device": 0}})
    return {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": prediction["ranks"]},
            "traceEvents": events}


def written(folder, name, document):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        json.dump(document, f)
    return path


def check_case(program, name, flags, folder):
    predicted, snapshot = os.path.join(folder, "prediction.json"), os.path.join(folder, "snapshot.pickle")
    made = called(program, "simulate", *flags, "-o", predicted, "--snapshot", snapshot, "--json=brief")
    assert made.returncode in (0, 1), made.stderr
    prediction = json.load(open(predicted))
    with open(snapshot, "rb") as f:
        recorded = pickle.load(f)
    for segment in recorded["segments"]:
        segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
    recorded["allocator_settings"].update({"PYTORCH_CUDA_ALLOC_CONF": None, "garbage_collection_threshold": 0.5})
    answers = []
    for protocol in (2, 3, 4, 5):
        with open(snapshot, "wb") as f:
            pickle.dump(recorded, f, protocol=protocol)
        done = called(program, "validate", predicted, "--snapshot", snapshot, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        answers.append(done.stdout)
    assert len(set(answers)) == 1, "protocols differ"
    answer = json.loads(answers[0])
    assert answer["peak"]["error"] == 0 and all(row["error"] == 0 for row in answer["memory"]), answer["memory"]

    done = called(program, "validate", predicted, "--trace", written(folder, "t.json", trace_of(prediction)), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    for row in [answer["step_time"], *answer["by_action"]]:
        assert abs(row["predicted"] - row["measured"]) < 1e-5, row
    for row in answer["where"]:
        assert abs(row["predicted"] - row["measured"]) < 0.01 * prediction["step_time_s"], row
    slow = written(folder, "slow.json", trace_of(prediction, slow="all_gather", factor=1.5))
    done = called(program, "validate", predicted, "--trace", slow, "--json")
    gathers = [r for r in json.loads(done.stdout)["by_action"] if "all-gather" in r["what"]]
    assert gathers and all(abs(r["measured"] / r["predicted"] - 1.5) < 1e-3 for r in gathers), gathers
    print("read back: %s, %d entries, %d collectives" % (name, len(recorded["device_traces"][0]), len(gathers)))
    return predicted


def check_refusals(program, predicted, folder):
    def refused(words, *flags):
        done = called(program, "validate", predicted, *flags)
        assert done.returncode == 2 and words in done.stderr, (done.returncode, done.stderr)

    path = os.path.join(folder, "cpu.json")
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=2),
                 on_trace_ready=lambda p: p.export_chrome_trace(path)) as p:
        for _ in range(3):
            torch.randn(16, 16) @ torch.randn(16, 16)
            p.step()
    refused("no kernels of a GPU", "--trace", path)
    with open(path, "rb") as f, gzip.open(path + ".gz", "wb") as packed:
        packed.write(f.read())
    refused("gunzip", "--trace", path + ".gz")
    torch.save({"a": torch.zeros(3)}, path)
    refused("is not a pickle", "--snapshot", path)
    with open(path, "wb") as f:
        pickle.dump(torch.Size([1]), f)
    refused("would run code", "--snapshot", path)
    with open(path, "wb") as f:
        pickle.dump({"segments": 2**80}, f)
    refused("64 bits", "--snapshot", path)


def main(program):
    program = os.path.abspath(program)
    with tempfile.TemporaryDirectory() as folder:
        for name, flags in CASES.items():
            predicted = check_case(program, name, flags, folder)
        check_refusals(program, predicted, folder)
    print("refused: a trace of a CPU, one that is packed, torch.save, code, an integer of 80 bits")


if __name__ == "__main__":
    main(*sys.argv[1:])
