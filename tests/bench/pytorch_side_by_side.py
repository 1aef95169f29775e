#!/usr/bin/env python3
"""One plan, executed by this project's host backend and by PyTorch's FSDP2 on processors, in turns on the same machine.

    tests/bench/pytorch_side_by_side.py [--program build/release/fsdp-plan] [--python PYTHON] [--rounds 2] [--steps 5]
      ...

Ours: `fsdp-plan run --backend host`, ranks are threads of one process, one computing thread each. PyTorch: the script
that the plan emits (`show plan --emit pytorch`), gloo over the loopback device, one process per rank with
OMP_NUM_THREADS=1; as emitted, and with torch.optim.AdamW(fused=True), which PyTorch leaves off on processors unless it
is asked for. Same model, plan, batch, fp32 and optimizer; weights and tokens are drawn by other generators, so losses
agree only about as well as ln(vocabulary) does.

Columns: `step` is the median over all rounds of the time from step to step (the slowest rank), `least` its minimum;
`CPU` the processor seconds of a step over all ranks, which other load on the machine moves less; `peak` the high-water
marks of the processes, added up (PyTorch's hold an interpreter and its libraries: `idle`, taken before the model is
made). Nothing passes or fails on time.

PyTorch is optional: without it (--python, else FSDP_PLAN_PYTHON, else python3) only our side runs, and that is said.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
TICK = os.sysconf("SC_CLK_TCK")


def fail(message):
    raise SystemExit(f"pytorch_side_by_side: {message}")


# ---- a rank of PyTorch's side ----------------------------------------------------------------------------------------

def worker(script, output, steps, fused):
    """Runs the emitted script; notes wall clock and processor time at the start of every step."""
    import torch
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    spec = importlib.util.spec_from_file_location("emitted", script)
    emitted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    train_step, make_optimizer, starts = emitted.train_step, emitted.make_optimizer, []

    def timed(*arguments):
        used = resource.getrusage(resource.RUSAGE_SELF)
        starts.append((time.monotonic(), used.ru_utime + used.ru_stime))
        return train_step(*arguments)

    def fused_adamw(model):
        o = emitted.PLAN["optimizer"]
        return torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"],
                                 weight_decay=o["weight_decay"], fused=True)

    emitted.train_step = timed
    emitted.make_optimizer = fused_adamw if fused else make_optimizer
    losses = emitted.main(["--cpu", "--reference", "--steps", str(steps + 1)])   # a step ends where the next begins
    config = torch.__config__.show().splitlines()
    result = {
        "walls": [b[0] - a[0] for a, b in zip(starts, starts[1:])],
        "cpus": [b[1] - a[1] for a, b in zip(starts, starts[1:])],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "idle": idle, "losses": losses,
        "torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "libraries": [line.strip(" -") for line in config if "Math Kernel" in line or "MKL-DNN" in line
                      or "oneDNN" in line]}
    pathlib.Path(f"{output}.{os.environ['RANK']}").write_text(json.dumps(result))


# ---- the two sides ---------------------------------------------------------------------------------------------------

def run_torch(a, folder, fused):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = str(s.getsockname()[1])
    output = folder / "torch.json"
    ranks = [subprocess.Popen([a.python, "-W", "ignore", str(HERE), "--worker", str(folder / "script.py"), str(output),
                               str(a.warmup + a.steps), str(int(fused))],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(a.ranks),
                                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
                                   "MKL_NUM_THREADS": "1",
                                   "GLOO_SOCKET_IFNAME": "lo"}) for r in range(a.ranks)]
    errors = [p.communicate()[1] for p in ranks]
    if any(p.returncode for p in ranks):
        fail("PyTorch's side failed:\n" + "\n".join(errors))
    results = [json.loads(pathlib.Path(f"{output}.{r}").read_text()) for r in range(a.ranks)]
    walls = [max(w) for w in zip(*(r["walls"] for r in results))][a.warmup:]
    cpus = [sum(c) for c in zip(*(r["cpus"] for r in results))][a.warmup:]
    return {"walls": walls, "cpus": cpus, "peak": sum(r["peak"] for r in results),
            "idle": sum(r["idle"] for r in results),
            "loss": results[0]["losses"][0], "about": results[0]}


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def run_ours(a, folder):
    """Processor time per step: what the process used in as long a time before its last step ended as the measured steps
    took."""
    output, samples = folder / "measurement.json", []
    process = subprocess.Popen([a.program, "run", "--plan", str(folder / "plan.json"), "--model", a.model, "--backend",
                                "host",
                                "--warmup", str(a.warmup), "--steps", str(a.steps), "-o", str(output)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        try:
            samples.append((time.monotonic(), cpu_seconds(process.pid)))
        except (OSError, IndexError):
            break
        time.sleep(0.02)
    if process.wait() != 0:
        fail("our side failed:\n" + process.communicate()[0] + process.communicate()[1])
    m = json.loads(output.read_text())
    begin = samples[-1][0] - sum(m["steps_s"])
    before = min(samples, key=lambda s: abs(s[0] - begin))
    return {"walls": m["steps_s"], "cpus": [(samples[-1][1] - before[1]) / a.steps],
            "peak": m["process_high_water_bytes"],
            "idle": 0, "loss": m["losses"][0], "about": m["environment"]}


def make_plan(a, folder):
    # The flags leave one candidate, so the cluster's costs choose nothing.
    command = [a.program, "plan", "--model", a.model, "--cluster", "dgx-h100", "--gpus", str(a.ranks),
               "--implementation", "native",
               "--seq-len", str(a.seq_len), "--micro-batch", str(a.micro_batch), "--grad-accum", "1", "--wrap", "block",
               "--replicate", "1", "--reshard-after-forward", "true", "--activation-checkpointing", "none",
               "--param-dtype", "fp32", "--reduce-dtype", "fp32", "-o", str(folder / "plan.json")]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode not in (0, 1):
        fail("no plan was made:\n" + made.stdout)
    emitted = subprocess.run([a.program, "show", "plan", str(folder / "plan.json"), "--model", a.model, "--emit",
                              "pytorch"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    (folder / "script.py").write_text(emitted.stdout)


def has_torch(python):
    try:
        return subprocess.run([python, "-c", "import torch.distributed.fsdp"],
                              stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


# ---- the table -------------------------------------------------------------------------------------------------------

def row(name, runs, tokens, first):
    walls, cpus = [w for r in runs for w in r["walls"]], [c for r in runs for c in r["cpus"]]
    step, least, cpu = statistics.median(walls), min(walls), statistics.median(cpus)
    peak, idle = max(r["peak"] for r in runs), max(r["idle"] for r in runs)
    times = lambda value, key: f"{first[key] / value:5.2f}" if first else " 1.00"
    print(f"{name:28s} {step:7.3f} s {least:7.3f} s {cpu:7.3f} s {tokens / step:8.0f} {peak / 2**30:6.2f} GiB "
          f"{idle / 2**30:5.2f} GiB   {times(step, 'step')} {times(least, 'least')} {times(cpu, 'cpu')}   "
          f"{runs[0]['loss']:.3f}")
    return {"step": step, "least": least, "cpu": cpu}


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "--worker":
        return worker(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "1")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="build/release/fsdp-plan")
    p.add_argument("--python", default=os.environ.get("FSDP_PLAN_PYTHON", "python3"))
    p.add_argument("--model", default=str(HERE.parent / "llama-100m.json"))
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--seq-len", type=int, default=512)
    p.add_argument("--micro-batch", type=int, default=1)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--steps", type=int, default=5)
    a = p.parse_args()
    sides = {"fsdp-plan, host backend": lambda folder: run_ours(a, folder)}
    if has_torch(a.python):
        sides["PyTorch FSDP2, gloo"] = lambda folder: run_torch(a, folder, False)
        sides["PyTorch FSDP2, fused AdamW"] = lambda folder: run_torch(a, folder, True)
    else:
        print(f"{a.python} has no PyTorch with FSDP2 (set FSDP_PLAN_PYTHON): our side alone, no comparison")
    runs = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        make_plan(a, pathlib.Path(folder))
        for _ in range(a.rounds):
            for name, side in sides.items():
                runs[name].append(side(pathlib.Path(folder)))
    tokens = a.ranks * a.micro_batch * a.seq_len
    print(f"{pathlib.Path(a.model).name}: {a.ranks} ranks, {a.micro_batch} x {a.seq_len} tokens each, fp32, one thread "
          f"per rank; "
          f"{a.rounds} rounds of {a.steps} steps after {a.warmup}, in turns; load now {os.getloadavg()[0]:.1f} on "
          f"{os.cpu_count()} cores")
    print(f"{'':28s} {'step':>9s} {'least':>9s} {'CPU':>9s} {'tokens/s':>8s} {'peak':>10s} {'idle':>9s}   ours / "
          f"theirs: step least CPU   first loss")
    first = None
    for name in sides:
        made = row(name, runs[name], tokens, first)
        first = first or made
    print("ours:    " + next(iter(runs.values()))[0]["about"])
    if len(sides) > 1:
        t = runs["PyTorch FSDP2, gloo"][0]["about"]
        print(f"PyTorch: {t['torch']}, kernels {t['capability']}, {t['threads']} thread per rank, "
              + "; ".join(t["libraries"]))


if __name__ == "__main__":
    main()
