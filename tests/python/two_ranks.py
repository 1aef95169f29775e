#!/usr/bin/env python3
"""Plans on two CPU ranks with real gloo: applied, checked, trained, recorded, validated by the program.

    python3 tests/python/two_ranks.py            exit 1 and what differs, if anything does
    ... --quick                                  some of the plans

Every plan of PLANS must carry out, train to the losses of unsharded training (in fp32), and validate as equal in order
and memory (of offload in order: on processors host and device are one memory). Every change of CHANGED must be found by
check(), and by validate where it changes the order.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
PROGRAM = os.environ.setdefault("FSDP_PLAN_PROGRAM", str(ROOT / "build" / "release" / "fsdp-plan"))
CONFIG = ROOT / "python" / "examples" / "config.json"

BASE = ["--micro-batch", "2", "--param-dtype", "fp32", "--wrap", "block", "--reshard-after-forward", "auto",
        "--activation-checkpointing", "none", "--replicate", "1"]
PLANS = {
    "blocks": [],
    "titan": ["--wrap", "titan", "--reshard-after-forward", "false"],
    "groups, prefetch": ["--wrap", "block:2", "--forward-prefetch", "2", "--backward-prefetch", "2"],
    "by size": ["--wrap", "params:3e5"],
    "checkpointed": ["--activation-checkpointing", "full"],
    "inputs in host memory": ["--activation-checkpointing", "full"],      # and see to_host
    "every second": ["--activation-checkpointing", "every-2", "--wrap", "titan"],
    "selective": ["--activation-checkpointing", "selective-op"],
    "no sync": ["--grad-accum", "2", "--grad-sync", "last"],
    "sync": ["--grad-accum", "2", "--grad-sync", "every"],
    "replicas": ["--replicate", "2"],
    "bf16": ["--param-dtype", "bf16"],
    "replicas, bf16": ["--replicate", "2", "--param-dtype", "bf16"],
    "root": ["--wrap", "root"],
    "offload": ["--offload", "true", "--clip-norm", "0.1"],
    "states in host memory": ["--offload-optimizer", "true", "--clip-norm", "0.1"],
    "fsdp1, states in host memory": ["--dialect", "fsdp1", "--offload-optimizer", "true"],
    "fsdp1": ["--dialect", "fsdp1"],
    "fsdp1, checkpointed": ["--dialect", "fsdp1", "--activation-checkpointing", "full", "--clip-norm", "0.1"],
    "fsdp1, no sync": ["--dialect", "fsdp1", "--grad-accum", "2", "--grad-sync", "last"],
    "fsdp1, bf16": ["--dialect", "fsdp1", "--param-dtype", "bf16", "--reshard-after-forward", "false"],
    "fsdp1, adapters": ["--dialect", "fsdp1", "--param-dtype", "bf16", "--wrap", "block|adapters",
                        "--activation-checkpointing", "full", "--lora", "rank=4"],
    "fsdp1, replicas": ["--dialect", "fsdp1", "--replicate", "2"],
    "ddp": ["--dialect", "ddp", "--wrap", "root", "--replicate", "2"],
    "ddp, titan": ["--dialect", "ddp", "--wrap", "titan", "--replicate", "2", "--clip-norm", "0.1"],
    "ddp, no sync": ["--dialect", "ddp", "--wrap", "root", "--replicate", "2", "--grad-accum", "2", "--grad-sync",
                     "last"],
}
QUICK = ["blocks", "groups, prefetch", "replicas, bf16", "offload", "fsdp1, no sync", "ddp, titan"]
# DistributedDataParallel copies each gradient into its bucket, and lets go of what autograd made after that; gradients
# of micro-batches that do not reduce are no views of buckets. The prediction writes gradients where they stay.
# peft casts what an adapter reads to the dtype of its shard, and its unit casts it back: simulate says so in a note.
ROUGH = {"ddp": "3%", "ddp, titan": "3%", "ddp, no sync": "15%", "fsdp1, adapters": "6%"}


def ask(*arguments, codes=(0,)):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in codes:
        raise AssertionError(f"fsdp-plan {arguments}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def flags(more):
    """BASE, with what `more` gives again replaced."""
    pairs = dict(zip(BASE[::2], BASE[1::2]))
    pairs.update(zip(more[::2], more[1::2]))
    return [text for pair in pairs.items() for text in pair]


def lora_of(name):
    """What both sides are told of the adapters of this plan."""
    more = PLANS.get(name, [])
    return more[more.index("--lora"):][:2] if "--lora" in more else []


def choose(names):
    for name in [n for n in PLANS if n not in names]:
        PLANS.pop(name)


def to_host(file):
    """What a search does not choose is written into its plan by hand."""
    plan = json.loads(file.read_text())
    plan["offload_activations"] = plan["checkpointed"][1:]
    file.write_text(json.dumps(plan))


def parent():
    with tempfile.TemporaryDirectory() as folder:
        folder, failures = pathlib.Path(folder), []
        for name, more in PLANS.items():
            ask("plan", "--model", CONFIG, "--cluster", "dgx-h100", "--gpus", 2, "--seq-len", 128, "--implementation",
                "hf", "--optimizer", "adamw", *flags(more), "-o", folder / f"{name}.plan.json", codes=(0, 1))
        if "inputs in host memory" in PLANS:
            to_host(folder / "inputs in host memory.plan.json")
        (folder / "names.json").write_text(json.dumps({name: lora_of(name)[1:] for name in PLANS}))
        run_ranks(folder)
        for name in list(PLANS) + ["changed"]:
            plan = folder / f"{name if name in PLANS else 'blocks'}.plan.json"
            prediction = folder / f"{name}.prediction.json"
            ask("simulate", "--plan", plan, "--model", CONFIG, "--cluster", "dgx-h100", *lora_of(name),
                "-o", prediction, codes=(0, 1))
            answer = ask("validate", prediction, folder / f"{name}.json", "--json", "--memory-tolerance",
                         ROUGH.get(name, "1%"), codes=(0, 1))
            failures += judge(name, json.loads(answer.stdout))
        for failure in failures:
            print(failure)
        print(f"{len(PLANS)} plans applied, checked, recorded on two ranks and validated; {len(failures)} differ")
        return 1 if failures else 0


def judge(name, report):
    seen = not any(text.startswith("memory: ") for text in report["not_compared"])
    memory = (f"peak {report['peak']['error']:+.2%} ({report['peak']['measured']:,.0f} B), memory "
              f"{'equal' if report['memory_equal'] else 'different'}") if seen else "memory not compared"
    print(f"  {name}: order {'equal' if report['order_equal'] else 'different'}, {memory}")
    if seen == (name == "offload" or name.endswith("in host memory")):     # where host and device share the memory
        return [f"{name}: memory was {'' if seen else 'not '}compared"]
    if name == "changed":
        wrong = report["within"] or report["order_equal"] or "layers.1" not in report["differences"][0]
        return [f"{name}: not found by validate: {report['differences']}"] if wrong else []
    return [] if report["order_equal"] and report["within"] else [f"{name}: {report['differences'][:2]}"]


def run_ranks(folder):
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = str(found.getsockname()[1])
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                   "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, "-W", "ignore", __file__, str(folder)],
                              env={**environment, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(2)]
    while any(p.poll() is None for p in ranks) and not any(p.poll() for p in ranks):
        time.sleep(0.1)
    for p in ranks:                          # one failed: the others would wait for it
        if p.poll() is None:
            p.terminate()
    if any(p.wait() for p in ranks):
        raise SystemExit("a rank failed")


if __name__ == "__main__":
    if "RANK" in os.environ:
        import rank_of_two
        rank_of_two.main(pathlib.Path(sys.argv[1]), CONFIG)
    else:
        if "--quick" in sys.argv:
            choose(QUICK)
        if "--only" in sys.argv:
            choose(["blocks", "groups, prefetch", "fsdp1, no sync", *sys.argv[sys.argv.index("--only") + 1:]])
        sys.exit(parent())
