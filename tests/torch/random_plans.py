#!/usr/bin/env python3
"""Compares what PyTorch does with what the program says for plans that nobody wrote down.

Draws small models and plans (plan_space.py), asks the program for the plan's script and for its step
(`show plan --emit pytorch`, `show step --json --buffers`), runs the script on a fake process group, and compares what
both issue, in host order. A difference is shrunk to its smallest plan. Plans that one side refuses are counted.

    python3 tests/torch/random_plans.py --seconds 60             prints what differs; exit 1 if anything does
    python3 tests/torch/random_plans.py --seed 7 --count 1       one plan again

Plans that differed once (kept_plans.json) are compared first, whatever the seed.
"""
import argparse
import collections
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import logging

import torch

import emitted_run
import plan_space

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.environ.get("FSDP_PLAN_PROGRAM", str(ROOT / "build" / "release" / "fsdp-plan"))
torch.set_num_threads(1)
logging.disable(logging.WARNING)


STATES = ["parameter shards", "optimizer states", "sharded gradients"]


class Refused(Exception):
    """The program says no."""


class Work:
    """A folder, and what the program said about models and policies so far."""

    def __init__(self, folder):
        self.folder, self.plans = pathlib.Path(folder), {}

    def ask(self, *arguments):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode == 2:
            raise Refused(done.stderr.strip())
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{arguments}: {done.returncode} {done.stderr}")
        return done.stdout

    def base(self, model, policy):
        """A plan of the policy for the model: its digest and its units."""
        key = (json.dumps(model, sort_keys=True), policy)
        if key not in self.plans:
            path = self.folder / "model.json"
            path.write_text(json.dumps(model))
            out = self.folder / "base.json"
            out.unlink(missing_ok=True)
            try:
                self.ask("plan", "--model", path, "--cluster", "dgx-h100", "--gpus", 2, "--seq-len", 8, "--micro-batch",
                         2, "--implementation", "hf", "--wrap", policy, "--replicate", 1,
                         "--activation-checkpointing", "none", "-o", out)
                self.plans[key] = json.loads(out.read_text())
            except Refused as no:
                self.plans[key] = no
        if isinstance(self.plans[key], Refused):
            raise self.plans[key]
        return self.plans[key]

    def write(self, case):
        """plan.json and model.json of a case."""
        base = json.loads(json.dumps(self.base(case["model"], case["policy"] or "root")))
        plan = case["plan"]
        for key, value in plan.items():
            if key not in ("reshard",):
                base[key] = value
        if case["policy"]:
            for u in base["units"]:
                u["reshard_after_forward"] = plan["reshard"]
        (self.folder / "model.json").write_text(json.dumps(case["model"]))
        (self.folder / "plan.json").write_text(json.dumps(base))
        return base

    def script(self):
        return self.ask("show", "plan", self.folder / "plan.json", "--model", self.folder / "model.json", "--emit",
                        "pytorch")

    def step(self):
        return json.loads(self.ask("show", "step", "--plan", self.folder / "plan.json", "--model",
                                   self.folder / "model.json", "--implementation", "hf", "--json", "--buffers"))


def planned_events(step, plan):
    """(events, bytes) as emitted_run.events_of has them, of a step as the program shows it."""
    buffers, events, live = step["buffers"], [], set()
    counted = [0 if b["host"] or b["kind"] == "scalars" else b["bytes"] for b in buffers]
    # What lives before the step begins: what it frees first, or never makes.
    made = {b for op in step["ops"] for b in op["memory"] if b >= 0}
    kept = [b for b, buffer in enumerate(buffers) if b not in made and buffer["kind"] in STATES]
    total = sum(counted[b] for b in kept)
    seen = set()
    for op in step["ops"]:
        for b in op["memory"]:
            if b < 0 and -1 - b not in seen and -1 - b not in kept:
                total += counted[-1 - b]
            seen.add(b if b >= 0 else -1 - b)
    peak, moments = 0, []
    sizes = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "i64": 8}
    replicate, shard = (d["size"] for d in plan["mesh"])
    freed_unit = None

    def elements(b):
        return buffers[b]["bytes"] // sizes[buffers[b]["dtype"]]

    def ranks(op):
        if op["communicator"] == "replicate":
            return replicate
        return plan["units"][op["unit"]]["reshard_after_forward"] if op["communicator"] == "reshard" else shard

    def retained():
        left = [(buffers[b]["unit"], buffers[b]["parameter"], b) for b in live
                if buffers[b]["kind"] in ("gradients", "accumulators")]
        events.extend(["retained", u, elements(b), buffers[b]["dtype"]] for u, _, b in sorted(left))
    for op in step["ops"]:
        action, args, unit = op["action"], op["args"], op["unit"]
        if action == "load_batch" and op["micro_batch"] > 0:
            retained()
        if action != "keep_shard" or unit != freed_unit:
            freed_unit = None
        if action == "optimizer" and not moments[-1:] == [["peak", -1, peak]]:
            moments.append(["peak", -1, peak])
        for b in op["memory"]:
            if b >= 0:
                live.add(b)
                total += counted[b]
                peak = max(peak, total)
        if unit >= 0 and args:
            first = [action, unit, elements(args[0]), buffers[args[0]]["dtype"]] if args[0] >= 0 else None
            if action == "all_gather":
                events.append(first + [op["communicator"], ranks(op)])
            elif action == "gather_copy_out":
                events.append(["copy_out", unit, 0, ""])
                moments.append(["copy_out", unit, total])
            elif action == "divide_gradient" and len(args) == 1:
                events.append(["divide"] + first[1:] + [op["divisor"]])
            elif action == "reduce_scatter" and shard > 1 or action == "all_reduce":
                events.append(first + [op["communicator"], ranks(op), op["reduction"].replace("-", "_")])
        for b in (-1 - b for b in op["memory"] if b < 0):
            live.discard(b)
            kind = buffers[b]["kind"]
            if kind == "unsharded parameters" and buffers[b]["unit"] != freed_unit:
                freed_unit = buffers[b]["unit"]
                events.append(["free", freed_unit, 0, ""])
                moments.append(["free", freed_unit, total])
            elif kind in ("gather buffers", "reduce inputs"):
                what = "free_gather" if kind == "gather buffers" else "free_input"
                events.append([what, buffers[b]["unit"], elements(b), ""])
            total -= counted[b]
    retained()
    return events, moments


def first_difference(ours, theirs):
    """None, or where two lists of events part."""
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    if same == len(ours) == len(theirs):
        return None
    return {"at": same, "ours": ours[same:same + 4], "theirs": theirs[same:same + 4],
            "lengths": [len(ours), len(theirs)]}


def compare(work, case):
    """("equal" | "both refuse" | "we refuse" | "PyTorch refuses" | "differs", what)."""
    try:
        plan = work.write(case)
        script, step = work.script(), work.step()
    except Refused as no:
        return "we refuse", str(no)
    try:
        theirs, alive = emitted_run.events_of(script, case["memory"])
    except Exception as error:  # whatever PyTorch raises is its answer
        return "PyTorch refuses", f"{type(error).__name__}: {str(error)[:300]}"
    ours, planned = planned_events(step, plan)
    difference = first_difference(ours, theirs)
    if difference is None and case["memory"]:
        difference = memory_difference(planned, alive)
    return ("equal", None) if difference is None else ("differs", difference)


def memory_difference(ours, theirs):
    """None, or the moment at which the bytes that are alive differ most, if that is more than 0.1 % of the peak."""
    peak = theirs[-1][2]
    worst = max(zip(ours, theirs, strict=True), key=lambda pair: abs(pair[0][2] - pair[1][2]))
    if abs(worst[0][2] - worst[1][2]) <= 0.001 * peak:
        return None
    return {"memory": worst[0][:2], "ours": worst[0][2], "theirs": worst[1][2],
            "of the peak": round((worst[0][2] - worst[1][2]) / peak, 4),
            "peaks": [ours[-1][2], peak, round(ours[-1][2] / peak - 1, 4)]}


def shrink(work, case, verdict):
    """The smallest case on the way down that still ends with this verdict."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in plan_space.simpler(case):
            if compare(work, candidate)[0] == verdict:
                case, smaller = candidate, True
                break
    return case


def show(case, what):
    plan = {k: v for k, v in case["plan"].items() if plan_space.DEFAULTS.get(k, "") != v}
    plan["mesh"] = [d["size"] for d in plan["mesh"]]
    if "units" in plan:
        plan["units"] = [u["modules"] + [{k: v for k, v in u.items() if k != "modules"}] for u in plan["units"]]
    model = case["model"]
    print(f"    {model['model_type']}, {model.get('num_hidden_layers', model.get('n_layer'))} layers,"
          f" tied {model.get('tie_word_embeddings')}, policy {case['policy']}: {json.dumps(plan)}")
    print(f"    {json.dumps(what)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seed", type=int, help="of the first plan; the next has the next one; default: the clock's")
    parser.add_argument("--families", default=",".join(plan_space.FAMILIES))
    parser.add_argument("--memory", action="store_true", help="compare also the bytes that are alive (slower)")
    parser.add_argument("--no-shrink", action="store_true")
    args = parser.parse_args()
    seed = int(time.time()) if args.seed is None else args.seed
    end, results, pairs = time.time() + args.seconds, collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        work = Work(folder)
        for name, case in json.loads((ROOT / "tests" / "torch" / "kept_plans.json").read_text()).items():
            verdict, what = compare(work, case)
            results[verdict if verdict != "we refuse" else "differs"] += 1
            if verdict != "equal":
                print(f"  {name}: {verdict}: {what}", flush=True)
        for n in range(args.count):
            if time.time() > end:
                break
            case = plan_space.draw(plan_space.generator(seed + n), args.families.split(","), args.memory)
            verdict, what = compare(work, case)
            results[verdict] += 1
            if verdict != "we refuse":
                pairs.update(itertools.combinations(sorted(plan_space.features(case)), 2))
            if verdict in ("differs", "PyTorch refuses"):
                print(f"  seed {seed + n}: {verdict}", flush=True)
                if not args.no_shrink:
                    case = shrink(work, case, verdict)
                    what = compare(work, case)[1]
                show(case, what)
            elif verdict == "we refuse":
                results["refused: " + what.split("\n")[0][:150]] += 1
    print(f"seeds from {seed}: " + ", ".join(f"{v} {k}" for k, v in results.items() if not k.startswith("refused")))
    for k, v in results.most_common():
        if k.startswith("refused"):
            print(f"  {v} {k}")
    print(f"{len(pairs)} pairs of features, the rarest: "
          + "; ".join(f"{a} with {b}" for (a, b), _ in pairs.most_common()[:-6:-1]))
    return 1 if results["differs"] or results["PyTorch refuses"] else 0


if __name__ == "__main__":
    sys.exit(main())
