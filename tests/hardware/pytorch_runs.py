#!/usr/bin/env python3
"""Plans carried out by PyTorch on one GPU, against their predictions: times, peaks, reserved memory, order.

    tests/hardware/pytorch_runs.py plan FOLDER          here: plans and predictions, with the program
    tests/hardware/pytorch_runs.py run FOLDER           where the GPU and PyTorch are: measurements, FOLDER/record.json
    tests/hardware/pytorch_runs.py compare FOLDER       here: a table of both
    tests/hardware/pytorch_runs.py keep FOLDER FILE     here: models, plans and measurements in one file

Models are transformers' own, made from the configurations below, applied and recorded with python/fsdp_plan; tokens are
random. A run that fails is written down with its words, and the next one begins. FSDP_PLAN_PROGRAM names the program,
FSDP_PLAN_CHECK_CLUSTER the catalog's cluster with that GPU, FSDP_PLAN_CHECK_TORCH the release of PyTorch that runs
there. tests/simulator/pytorch/gpu_runs_test.cpp reads what was kept.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
PROGRAM = os.environ.setdefault("FSDP_PLAN_PROGRAM", str(ROOT / "build" / "release" / "fsdp-plan"))
CLUSTER = os.environ.get("FSDP_PLAN_CHECK_CLUSTER", "dgx-h100")
RELEASE = os.environ.get("FSDP_PLAN_CHECK_TORCH", "2.11")
STEPS = 8                                    # the first settles, two are recorded, five are timed

LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=2048, intermediate_size=8192,
             num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256,
             max_position_embeddings=131072, rms_norm_eps=1e-5, tie_word_embeddings=True, hidden_act="silu")
MODELS = {
    "llama-1b": LLAMA,
    # Layers and head of llama3-8b, a quarter of the layers.
    "llama-8b-8": dict(LLAMA, hidden_size=4096, intermediate_size=14336, num_hidden_layers=8, head_dim=128,
                       tie_word_embeddings=False),
    "qwen3-0.6b": dict(LLAMA, model_type="qwen3", architectures=["Qwen3ForCausalLM"], hidden_size=1024,
                       intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, head_dim=128,
                       vocab_size=151936, rms_norm_eps=1e-6, max_position_embeddings=40960),
    # Widths of qwen3-30b-a3b, four of the layers.
    "qwen3-a3b-4": dict(LLAMA, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=2048,
                        intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=4, num_experts=128,
                        num_experts_per_tok=8, norm_topk_prob=True, num_attention_heads=32, num_key_value_heads=4,
                        head_dim=128, vocab_size=151936, rms_norm_eps=1e-6, tie_word_embeddings=False,
                        max_position_embeddings=40960),
    "gpt2-large": dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=1280, n_head=20, n_layer=36,
                       n_positions=1024, vocab_size=50257, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
                       activation_function="gelu_new"),
}
FULL, NONE = ["--activation-checkpointing", "full"], ["--activation-checkpointing", "none"]
FSDP1, DDP = ["--dialect", "fsdp1"], ["--dialect", "ddp"]
# name: model, tokens of a sequence, sequences of a micro-batch, more flags.
RUNS = {
    "llama-1b 4096x2 full": ("llama-1b", 4096, 2, FULL),
    "llama-1b 2048x2": ("llama-1b", 2048, 2, NONE),
    "llama-1b 8192x1 full": ("llama-1b", 8192, 1, FULL),
    "llama-1b 4096x1 every-2": ("llama-1b", 4096, 1, ["--activation-checkpointing", "every-2"]),
    "llama-1b 4096x1 selective": ("llama-1b", 4096, 1, ["--activation-checkpointing", "selective-op"]),
    "llama-1b 4096x2 full, loss in 8": ("llama-1b", 4096, 2, [*FULL, "--loss-chunks", "8"]),
    "llama-1b 2048x1 accumulated 4": ("llama-1b", 2048, 1, [*NONE, "--grad-accum", "4"]),
    "llama-1b 4096x1 fsdp1 full": ("llama-1b", 4096, 1, [*FSDP1, *FULL]),
    "llama-1b 2048x2 fsdp1": ("llama-1b", 2048, 2, [*FSDP1, *NONE]),
    "llama-1b 2048x2 ddp": ("llama-1b", 2048, 2, [*DDP, *NONE]),
    "llama-1b 4096x2 inputs in host memory": ("llama-1b", 4096, 2, FULL),         # and see to_host
    "llama-1b 4096x1 parameters in host memory": ("llama-1b", 4096, 1, [*FULL, "--offload", "true"]),
    "llama-8b-8 4096x1 full": ("llama-8b-8", 4096, 1, FULL),
    "llama-8b-8 2048x1": ("llama-8b-8", 2048, 1, NONE),
    "llama-8b-8 8192x1 full": ("llama-8b-8", 8192, 1, FULL),
    "llama-8b-8 8192x1 full, root alone": ("llama-8b-8", 8192, 1, [*FULL, "--wrap", "root"]),
    "qwen3-0.6b 4096x1": ("qwen3-0.6b", 4096, 1, NONE),
    "qwen3-0.6b 4096x2 full": ("qwen3-0.6b", 4096, 2, FULL),
    "qwen3-0.6b 1024x1": ("qwen3-0.6b", 1024, 1, NONE),
    "gpt2-large 1024x8": ("gpt2-large", 1024, 8, NONE),
    "gpt2-large 1024x16 full": ("gpt2-large", 1024, 16, FULL),
    "qwen3-a3b-4 4096x1 full": ("qwen3-a3b-4", 4096, 1, FULL),
    "qwen3-a3b-4 2048x1": ("qwen3-a3b-4", 2048, 1, NONE),
}


def file_of(folder, name, what):
    return folder / f"{name.replace(' ', '_').replace(',', '')}.{what}.json"


def ask(*arguments, codes=(0, 1)):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in codes:
        raise SystemExit(f"fsdp-plan {' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def plan(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for model, values in MODELS.items():
        file_of(folder, model, "config").write_text(json.dumps(values))
    for name, (model, length, sequences, more) in RUNS.items():
        config, plan_file = file_of(folder, model, "config"), file_of(folder, name, "plan")
        flags = {"--wrap": "block", "--grad-accum": 1, "--replicate": 1, "--optimizer": "adamw",
                 "--micro-batch": sequences, "--dialect": f"fsdp2@{RELEASE}", **dict(zip(more[::2], more[1::2]))}
        if flags.get("--dialect") == "ddp":
            flags.pop("--wrap")
        ask("plan", "--model", config, "--cluster", CLUSTER, "--gpus", 1, "--seq-len", length, "--implementation",
            "hf", *(x for pair in flags.items() for x in pair), "-o", plan_file)
        if name.endswith("inputs in host memory"):
            to_host(plan_file)
        predict(folder, name)
        print(name, flush=True)


def to_host(file):
    """What a search does not choose is written into its plan by hand."""
    values = json.loads(file.read_text())
    values["offload_activations"] = values["checkpointed"]
    file.write_text(json.dumps(values))


def predict(folder, name):
    ask("simulate", "--plan", file_of(folder, name, "plan"), "--model", file_of(folder, RUNS[name][0], "config"),
        "--cluster", CLUSTER, "--implementation", "hf", "-o", file_of(folder, name, "prediction"))


# ---- on the GPU ------------------------------------------------------------------------------------------------------

def run(folder, record, limit):
    """Every run in a process of its own, which finds a GPU that nothing was done with."""
    started = time.monotonic()
    import torch
    import transformers

    import fsdp_plan  # noqa: F401  before the processes part
    whole = {"schema": "fsdp-plan/pytorch-runs/1", "torch": torch.__version__, "transformers": transformers.__version__,
             "date": time.strftime("%Y-%m-%d"), "runs": {}}
    print(f"PyTorch is there after {time.monotonic() - started:.1f} s", flush=True)
    for name, (model, *_) in RUNS.items():
        found = folder / "found.json"
        found.unlink(missing_ok=True)
        begin = time.monotonic()
        if begin - started > limit:
            whole["runs"][name] = {"failed": "no time was left"}
            continue
        child = os.fork()
        if child == 0:
            try:
                found.write_text(json.dumps(run_alone(folder, name, model)))
            except BaseException as error:   # whatever a run dies of, the others go on
                found.write_text(json.dumps({"failed": f"{type(error).__name__}: {error}"[:2000]}))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        what = json.loads(found.read_text()) if found.exists() else {"failed": f"its process ended with {status}"}
        whole["runs"][name] = {**what, "whole_s": time.monotonic() - begin}
        record.write_text(json.dumps(whole, indent=1) + "\n")
        print(f"{name}: {whole['runs'][name]}"[:300], flush=True)


def run_alone(folder, name, model):
    import torch
    import torch.distributed as dist
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29876", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    if on_gpu:
        torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    found = run_one(file_of(folder, model, "config"), file_of(folder, name, "plan"),
                    file_of(folder, name, "measurement"), device)
    if on_gpu:
        found.update(device=torch.cuda.get_device_name(), launch_us=launch_microseconds(torch))
    dist.destroy_process_group()
    return found


def launch_microseconds(torch):
    """What this machine's processor takes to launch a small operator."""
    x = torch.zeros(1, device="cuda")
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(500):
            x.add_(1)
        times.append((time.perf_counter() - begin) / 500 * 1e6)
    return statistics.median(times)


def run_one(config, plan_file, measurement, device):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    import fsdp_plan
    values = json.loads(config.read_text())
    torch.manual_seed(0)
    offload = json.loads(plan_file.read_text()).get("offload", False)
    with torch.device("cpu" if offload else device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values, use_cache=False))
    step = fsdp_plan.apply(model, plan_file, source=config)
    fsdp_plan.check(step)
    optimizer, marks = step.optimizer(), []

    def mark():
        if device.type == "cuda":
            torch.cuda.synchronize()
        marks.append(time.monotonic())
    with fsdp_plan.record(step, measurement):
        for n in range(STEPS):
            batches = [torch.randint(values["vocab_size"], (count, step.plan["seq_len"] + 1), device=device)
                       for count in step.plan["micro_batches"]]
            if n in (0, 3, STEPS - 1):
                mark()
            for weight, tokens in step.micro_batches(batches):
                (weight * loss_of(step, tokens)).backward()
            step.finish(optimizer)
    seen = json.loads(measurement.read_text())
    found = {"median_step_s": seen["median_step_s"], "steps_s": seen["steps_s"], "noise": seen["noise"],
             "first_steps_s": marks[1] - marks[0], "peak_allocated_bytes": seen["ranks"][0]["peak_allocated_bytes"]}
    if device.type == "cuda":
        stats = torch.cuda.memory_stats()
        found.update(max_reserved_bytes=stats["reserved_bytes.all.peak"],
                     max_active_bytes=stats["active_bytes.all.peak"], retries=stats["num_alloc_retries"],
                     free_and_whole_bytes=list(torch.cuda.mem_get_info()))
    return found


def loss_of(step, tokens):
    import fsdp_plan
    return fsdp_plan.chunked_loss(step.model(tokens[:, :-1]).logits, tokens[:, 1:], step.plan["loss_chunks"])


# ---- and back --------------------------------------------------------------------------------------------------------

def compare(folder):
    runs, times, peaks, reserves = record_of(folder)["runs"], [], [], []
    print(f"{'run':42} {'measured':>10} {'predicted':>10} {'time':>8} {'peak GiB':>9} {'peak':>8} "
          f"{'reserved':>9} {'reserved':>8}  order, memory")
    for name, found in runs.items():
        if "failed" in found:
            print(f"{name:42} {found['failed'][:100]}")
            continue
        predict(folder, name)
        report = json.loads(ask("validate", file_of(folder, name, "prediction"), file_of(folder, name, "measurement"),
                                "--json"))
        predicted = json.loads(file_of(folder, name, "prediction").read_text())["peak_reserved_bytes"]
        step, peak, reserved = report["step_time"], report["peak"], found.get("max_reserved_bytes", 0)
        off = predicted / reserved - 1 if reserved else 0
        times.append(abs(step["error"])), peaks.append(abs(peak["error"])), reserves.append(abs(off))
        words = ["equal" if report[what] else "different" for what in ("order_equal", "memory_equal")]
        print(f"{name:42} {step['measured'] * 1e3:7.1f} ms {step['predicted'] * 1e3:7.1f} ms {step['error']:+8.1%} "
              f"{peak['measured'] / 2**30:9.3f} {peak['error']:+8.2%} {reserved / 2**30:9.3f} {off:+8.2%}  "
              f"{', '.join(words)}")
    if times:
        print(f"mean of {len(times)}: time {statistics.mean(times):.1%}, peak {statistics.mean(peaks):.2%}, reserved "
              f"{statistics.mean(reserves):.2%}")


def record_of(folder):
    return json.loads((folder / "record.json").read_text())


def keep(folder, file):
    """Without times of kernels, which are most of a measurement."""
    whole = record_of(folder)
    whole["models"] = {model: json.loads(file_of(folder, model, "config").read_text()) for model in MODELS}
    for name, found in whole["runs"].items():
        found["model"] = RUNS[name][0]
        if "failed" not in found:
            found["plan"] = json.loads(file_of(folder, name, "plan").read_text())
            found["measurement"] = json.loads(file_of(folder, name, "measurement").read_text())
            found["measurement"]["ranks"][0].pop("profiled_step", None)
            observed = found["measurement"]["observed"]
            found["measurement"]["observed"] = [o for o in observed if o not in ("collective_times", "kernel_times")]
    lines = [f" {json.dumps(name)}: {json.dumps(found)}" for name, found in whole.pop("runs").items()]
    text = json.dumps(whole)[:-1] + ', "runs": {\n' + ",\n".join(lines) + "\n}}\n"
    file.write_text(text)


def main(verb, folder, *more):
    folder = pathlib.Path(folder)
    if verb == "plan":
        plan(folder)
    elif verb == "run":
        run(folder, folder / "record.json", float(os.environ.get("FSDP_PLAN_CHECK_SECONDS", "480")))
    elif verb == "compare":
        compare(folder)
    elif verb == "keep" and more:
        keep(folder, pathlib.Path(more[0]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
