#!/usr/bin/env python3
"""Compares what PyTorch does with what the program says for plans that nobody wrote down.

Draws small models and plans (plan_space.py), asks the program for the plan's script and for its step
(`show plan --emit pytorch`, `show step --json --buffers`), runs the script on a fake process group, and compares what
both issue, in host order. A difference is shrunk to its smallest plan. What the program refuses is tried in PyTorch.

    python3 tests/torch/random_plans.py --seconds 60             prints what differs; exit 1 if anything does
    python3 tests/torch/random_plans.py --seed 7 --count 1       one plan again
    ... --memory       also the bytes that are alive, exactly: what differs by more than KINDS says is a difference
    ... --fsdp1        FullyShardedDataParallel, wrapped here as the plan says (fsdp1_run.py)
    ... --commands     plans that `fsdp-plan plan` makes of drawn flags (command_space.py)
    ... --cover        of many drawn plans, those whose pairs of features were compared least often

Plans that differed once (kept_plans.json) are compared first, whatever the seed.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import logging

import torch

import command_space
import emitted_run
import fsdp1_run
import plan_space
import refusals
import release

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
        self.folder, self.plans, self.kinds = pathlib.Path(folder), {}, collections.defaultdict(list)
        self.lora = None

    def ask(self, *arguments):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode == 2:
            raise Refused(done.stderr.strip())
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{arguments}: {done.returncode} {done.stderr}")
        return done.stdout

    def model(self):
        """The flags that name the model."""
        return ["--model", self.folder / "model.json"] + (["--lora", self.lora] if self.lora else [])

    def base(self, model, policy):
        """A plan of the policy for the model: its digest and its units."""
        key = (json.dumps(model, sort_keys=True), policy, self.lora)
        if key not in self.plans:
            path = self.folder / "model.json"
            path.write_text(json.dumps(model))
            out = self.folder / "base.json"
            out.unlink(missing_ok=True)
            try:
                self.ask("plan", *self.model(), "--cluster", "dgx-h100", "--gpus", 2, "--seq-len", 8, "--micro-batch",
                         2, "--implementation", "hf", "--wrap", policy, "--replicate", 1,
                         "--activation-checkpointing", "none", "-o", out)
                self.plans[key] = json.loads(out.read_text())
            except Refused as no:
                self.plans[key] = no
        if isinstance(self.plans[key], Refused):
            raise self.plans[key]
        return self.plans[key]

    def plan_of(self, case):
        """What the program makes of the case's command line."""
        (self.folder / "model.json").write_text(json.dumps(case["model"]))
        out = self.folder / "plan.json"
        out.unlink(missing_ok=True)
        flags = [text for pair in case["command"].items() for text in pair]
        self.ask("plan", *self.model(), "--cluster", "dgx-h100", "--implementation", "hf", "--dialect",
                 release.dialect(), *flags, "-o", out)
        return json.loads(out.read_text())

    def write(self, case):
        """plan.json and model.json of a case, for the PyTorch that runs."""
        self.lora = case.get("lora")
        if "command" in case:
            case["plan"] = self.plan_of(case)
            return case["plan"]
        plan = self.changed_base(case)
        (self.folder / "plan.json").write_text(json.dumps(plan))
        return plan

    def changed_base(self, case):
        base = json.loads(json.dumps(self.base(case["model"], case["policy"] or "root")))
        plan = case["plan"]
        base["dialect"] = release.dialect()
        for key, value in plan.items():
            if key not in ("reshard",):
                base[key] = value
        if case["policy"]:
            for u in base["units"]:
                u["reshard_after_forward"] = plan["reshard"]
        (self.folder / "model.json").write_text(json.dumps(case["model"]))
        return base

    def script(self):
        return self.ask("show", "plan", self.folder / "plan.json", *self.model(), "--emit", "pytorch")

    def script_of_model(self, case):
        """The script of an fsdp2 plan for the case's model."""
        (self.folder / "model.json").write_text(json.dumps(case["model"]))
        (self.folder / "plan.json").write_text(json.dumps(self.base(case["model"], "root")))
        text = self.script()
        return text

    def step(self):
        return json.loads(self.ask("show", "step", "--plan", self.folder / "plan.json", *self.model(),
                                   "--implementation", "hf", "--json", "--buffers"))


SIZES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "i64": 8}


class Planned:
    """The events of a step as the program shows it (as emitted_run.events_of has them), and what is alive."""

    def __init__(self, step, plan, explain=False):
        self.buffers, self.plan, self.explain = step["buffers"], plan, explain
        self.events, self.moments, self.snapshots = [], [], []
        self.counted = [0 if b["host"] or b["kind"] in ("scalars", "batch") else b["bytes"] for b in self.buffers]
        self.names, self.choices = ["kept"] * len(self.buffers), 0
        for op in step["ops"]:
            if op["what"].startswith(("forward moe_dispatch", "recompute moe_dispatch")):
                self.choices = self.buffers[op["args"][1]]["bytes"]
            for b in op["memory"]:
                if b >= 0:
                    self.names[b] = op["what"]
                    if self.buffers[b]["kind"] == "scratch" and op["action"] == "backward" and self.in_kernel(op, b):
                        self.counted[b] = 0
        self.casts_alone = plan["mesh"][1]["size"] == 1 and plan["param_dtype"] != plan["master_dtype"]
        self.cast_at_once = 0
        if self.casts_alone:
            self.counted = [0 if b["kind"] == "cast shards" else n for b, n in zip(self.buffers, self.counted)]
        self.live = self.alive_before(step["ops"])
        self.total = sum(self.counted[b] for b in self.live)
        self.stale = {}
        self.peak, self.at_peak, self.freed_unit, self.op, self.peak_op = 0, [], None, None, None
        for op in step["ops"]:
            self.run(op)
        self.retained()

    def in_kernel(self, op, b):
        """What flash's and the embedding's backward take inside, and the sorts (two orders in, two out) that gradients
        of gathered rows begin with: PyTorch's dispatcher does not see it."""
        kind = op["what"].split()[1]
        return kind in ("attention", "embedding") or kind in (
            "moe_dispatch", "moe_combine") and self.buffers[b]["bytes"] == 4 * self.choices

    def alive_before(self, ops):
        """What the step frees before it makes it, or never makes."""
        made = {b for op in ops for b in op["memory"] if b >= 0}
        alive = {b for b, buffer in enumerate(self.buffers) if b not in made and buffer["kind"] in STATES}
        seen = set()
        for op in ops:
            for b in op["memory"]:
                if b < 0 and -1 - b not in seen:
                    alive.add(-1 - b)
                seen.add(b if b >= 0 else -1 - b)
        return alive

    def saved_at_peak(self):
        """Bytes that the op of the peak makes for a backward, if that will make them again."""
        if not self.peak_op or self.peak_op["action"] != "forward":
            return 0
        return sum(self.counted[b] for b in self.peak_op["memory"]
                   if b >= 0 and self.buffers[b]["kind"] == "saved for backward" and -1 - b in self.peak_op["memory"])

    def stale_parts(self):
        """Bytes of parts that no gather of backward or of the next micro-batch reads."""
        return sum(self.stale.values())

    def snapshot(self):
        rows = [(self.counted[b], f"{self.buffers[b]['kind']}: {self.names[b]}") for b in self.live
                if self.counted[b] and self.names[b] != "kept"]
        return rows + [(sum(self.counted[b] for b in self.live if self.names[b] == "kept"), "kept")]

    def moment(self, what, unit, total=None):
        self.moments.append([what, unit, self.total if total is None else total])
        if self.explain:
            self.snapshots.append(self.snapshot())

    def elements(self, b):
        return self.buffers[b]["bytes"] // SIZES[self.buffers[b]["dtype"]]

    def ranks(self, op):
        replicate, shard = (d["size"] for d in self.plan["mesh"])
        if op["communicator"] == "replicate":
            return replicate
        return self.plan["units"][op["unit"]]["reshard_after_forward"] if op["communicator"] == "reshard" else shard

    def retained(self):
        left = [(self.buffers[b]["unit"], self.buffers[b]["parameter"], b) for b in self.live
                if self.buffers[b]["kind"] in ("gradients", "accumulators")]
        self.events.extend(["retained", u, self.elements(b), self.buffers[b]["dtype"]] for u, _, b in sorted(left))

    def appear(self, b):
        self.live.add(b)
        self.total += self.counted[b]
        self.note_peak(self.total)

    def note_peak(self, total):
        if total > self.peak:
            self.peak, self.at_peak, self.peak_op = total, self.snapshot() if self.explain else [], self.op

    def copy_alone(self, op):
        """A unit of one rank: PyTorch casts and copies its parameters one after the other, where the program casts all
        of them at once. Memory as PyTorch has it; the program has `cast_at_once` bytes more."""
        sizes, before = [self.counted[b] for b in op["memory"] if b >= 0], 0
        for i, size in enumerate(sizes):
            self.note_peak(self.total + sum(sizes[:i]) + before + size)
            self.note_peak(self.total + sum(sizes[:i + 1]) + size)
            before = size
        self.cast_at_once = max(self.cast_at_once, sum(sizes) - before)
        return before

    def own_gradients(self):
        """Bytes of the parameters' gradients that the op of the peak makes."""
        return sum(self.counted[b] for b in self.peak_op["memory"]
                   if b >= 0 and self.buffers[b]["kind"] == "gradients") if self.peak_op else 0

    def go(self, b, before=None):
        self.live.discard(b)
        kind, unit = self.buffers[b]["kind"], self.buffers[b]["unit"]
        if kind == "unsharded parameters" and unit != self.freed_unit:
            self.freed_unit = unit
            self.events.append(["free", unit, 0, ""])
            self.moment("free", unit, before)
        elif kind in ("gather buffers", "reduce inputs"):
            what = "free_gather" if kind == "gather buffers" else "free_input"
            self.events.append([what, unit, self.elements(b), ""])
        elif kind == "kept shards" and self.op["action"] != "gather_copy_out":
            self.stale[unit, self.buffers[b]["parameter"]] = self.counted[b]
        self.total -= self.counted[b]

    def run(self, op):
        if op["action"] == "load_batch" and op["micro_batch"] > 0:
            self.retained()
        if op["action"] != "keep_shard" or op["unit"] != self.freed_unit:
            self.freed_unit = None
        if op["action"] == "optimizer" and not self.before_optimizer():
            self.moments.append(["peak", -1, self.peak])
            self.snapshots.append(self.at_peak)
        # What an op frees stands last; what appears and goes inside it stands before.
        memory = op["memory"]
        last = max((i for i, b in enumerate(memory) if b >= 0), default=-1) + 1
        self.op, alone = op, 0
        before = self.total if op["action"] == "keep_shard" else None   # PyTorch's hook begins before the first clone
        if op["action"] == "gather_copy_out" and self.casts_alone:
            alone = self.copy_alone(op)
        for b in memory[:last]:
            self.appear(b) if b >= 0 else self.go(-1 - b)
        self.total += alone
        self.issue(op)
        self.total -= alone
        for b in memory[last:]:
            self.go(-1 - b, before if self.buffers[-1 - b]["unit"] == op["unit"] else None)

    def before_optimizer(self):
        return self.moments[-1:] and self.moments[-1][0] == "peak"

    def issue(self, op):
        action, args, unit = op["action"], op["args"], op["unit"]
        if unit < 0 or not args:
            return
        first = [action, unit, self.elements(args[0]), self.buffers[args[0]]["dtype"]] if args[0] >= 0 else None
        if action == "all_gather":
            self.events.append(first + [op["communicator"], self.ranks(op)])
        elif action == "gather_copy_out":
            self.events.append(["copy_out", unit, 0, ""])
            slabs = sum(self.counted[b] for b in op["memory"] if b >= 0 and self.buffers[b]["kind"] == "scratch")
            self.moment("copy_out", unit, self.total - slabs)    # of other dimensions: gone when PyTorch notes it
        elif action == "divide_gradient" and len(args) == 1:
            self.events.append(["divide"] + first[1:] + [op["divisor"]])
        elif action == "all_reduce" or action == "reduce_scatter" and (
                self.plan["mesh"][1]["size"] > 1 or release.REDUCES_ALONE):
            self.events.append(first + [op["communicator"], self.ranks(op), op["reduction"].replace("-", "_")])


def first_difference(ours, theirs):
    """None, or where two lists of events part."""
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    if same == len(ours) == len(theirs):
        return None
    return {"at": same, "ours": ours[same:same + 4], "theirs": theirs[same:same + 4],
            "lengths": [len(ours), len(theirs)]}


def compare(work, case, explain=False):
    """("equal" | "differs" | "PyTorch refuses" | "PyTorch runs" what we refuse | "both refuse" | "we refuse", what).
    What this PyTorch lacks both must refuse; the rest of the plan is compared."""
    verdict, what = compare_plan(work, case, explain)
    if verdict not in ("PyTorch runs", "both refuse") or not release.came_later(what):
        return verdict, what
    if verdict == "PyTorch runs":
        return "differs", {verdict: what}
    rest = release.without_later(case)
    return (verdict, what) if rest is None else compare(work, rest, explain)


def compare_plan(work, case, explain):
    try:
        plan = work.write(case)
        if plan["dialect"] == "fsdp1":
            step = work.step()
            script = work.script_of_model(case)
        else:
            script, step = work.script(), work.step()
    except Refused as no:
        return refused(work, case, str(no))
    if plan["dialect"] == "fsdp1":
        return compare_fsdp1(script, step, plan)
    try:
        theirs, alive, storages, tables = emitted_run.events_of(script, case["memory"], explain)
    except Exception as error:  # whatever PyTorch raises is its answer
        return "PyTorch refuses", f"{type(error).__name__}: {str(error)[:300]}"
    ours = Planned(step, plan, explain)
    difference = first_difference(ours.events, theirs)
    if difference is None and case["memory"]:
        difference = memory_difference(ours, alive, tables, work.kinds)
        if explain:
            explain_moments(ours, alive, storages)
    return ("equal", None) if difference is None else ("differs", difference)


def refused(work, case, why):
    """Whether PyTorch refuses too. Policies that no plan can be made of are the program's own."""
    why = why.replace(str(work.folder), "").split("\n")[0]
    if "command" in case:
        return "we refuse", why
    try:
        plan = work.changed_base(case)
        theirs = refusals.carried_out(work.script_of_model(case), plan)
    except Refused:
        return "we refuse", why
    return ("PyTorch runs", why) if theirs is None else ("both refuse", f"{why}  |  PyTorch: {theirs}")


KINDS = {
    "tables": "PyTorch has more: a model's positions and its cosines and sines, made once for all layers",
    "cast at once": "the program has more: one rank's unit is cast at once, PyTorch casts one parameter at a time",
    "own gradients": "the program has more at its peak: the gradients of an op's parameters count during the whole op",
    "unsaved": "the program has more at its peak, in the forward of a checkpointed module: what an op written out in "
               "many would save, which PyTorch drops one by one",
    "stale parts": "PyTorch has more: parts of a unit that backward never gathers stay until the next forward",
}


def memory_difference(planned, theirs, tables, kinds):
    """None, or the moment at which the bytes that are alive differ most. Every byte is compared but those of KINDS,
    which are noted in `kinds` with their part of the peak."""
    ours, peak = planned.moments, theirs[-1][2]
    for kind, size in (("tables", tables), ("cast at once", planned.cast_at_once)):
        if size:
            kinds[kind].append(size / peak)
    high = ours[-1][2] - peak
    if 0 < high <= planned.own_gradients():
        kinds["own gradients"].append(high / peak)
        ours = ours[:-1] + [theirs[-1]]
    elif 0 < high <= planned.saved_at_peak():
        kinds["unsaved"].append(high / peak)
        ours = ours[:-1] + [theirs[-1]]
    stale = planned.stale_parts()
    if stale and any(b[2] - a[2] == stale for a, b in zip(ours, theirs)):
        kinds["stale parts"].append(stale / peak)
        ours = [b if b[2] - a[2] == stale else a for a, b in zip(ours, theirs)]
    worst = max(zip(ours, theirs, strict=True), key=lambda pair: abs(pair[0][2] - pair[1][2]))
    if worst[0] == worst[1]:
        return None
    return {"memory": worst[0][:2], "ours": worst[0][2], "theirs": worst[1][2],
            "of the peak": round((worst[0][2] - worst[1][2]) / peak, 4),
            "peaks": [planned.moments[-1][2], peak, round(planned.moments[-1][2] / peak - 1, 4)]}


def compare_fsdp1(script, step, plan):
    try:
        events = fsdp1_run.events_of(emitted_run.load(script), plan)
    except Exception as error:  # whatever PyTorch raises is its answer
        return "PyTorch refuses", f"{type(error).__name__}: {str(error)[:300]}"
    difference = fsdp1_run.difference(step, events)
    return ("equal", None) if difference is None else ("differs", difference)


def explain_moments(ours, alive, storages):
    """Prints, for the moment where most bytes differ and for the peak, what only one side has."""
    worst = max(range(len(alive)), key=lambda i: abs(alive[i][2] - ours.moments[i][2]))
    for i in sorted({worst, len(alive) - 1}):
        print(f"    {i} of {len(alive)}: {ours.moments[i]}, PyTorch {alive[i]}, {ours.moments[i][2] - alive[i][2]:+}")
        left, right = sorted(ours.snapshots[i]), sorted(storages[i])
        sizes = collections.Counter(size for size, _ in left)
        sizes.subtract(size for size, _ in right)
        for size, more in sorted(sizes.items(), reverse=True):
            if more:
                print(f"      {more:+} of {size}")
                for side, rows in (("program", left), ("PyTorch", right)):
                    for name, n in collections.Counter(n for s, n in rows if s == size).items():
                        print(f"        {side}: {n} {name}")


def shrink(work, case, verdict):
    """The smallest case on the way down that still ends with this verdict."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in (command_space if "command" in case else plan_space).simpler(case):
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
          f" adapters {case.get('lora')},"
          f" tied {model.get('tie_word_embeddings')}, policy {case['policy']}: {json.dumps(plan)}")
    print(f"    {json.dumps(what)}", flush=True)


def drawn_case(args, seed, n, tried):
    """The n-th case: (its seed, the case). tried: how often each pair of features was drawn; counted here."""
    families = args.families.split(",")

    def draw(rng):
        if args.commands:
            return command_space.draw(rng, families, args.memory)
        return plan_space.draw_fsdp1(rng, families) if args.fsdp1 else plan_space.draw(rng, families, args.memory)
    if not args.cover:
        return seed + n, draw(plan_space.generator(seed + n))
    drawn, case = plan_space.covering(seed + n * plan_space.CANDIDATES, draw, tried)
    tried.update(plan_space.pairs(case))
    return drawn, case


def kind_of_refusal(text):
    """A refusal without its numbers and names."""
    return re.sub(r"'[^']*'|\d+", "", text)[:80]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seed", type=int, help="of the first plan; the next has the next one; default: the clock's")
    parser.add_argument("--families", default=",".join(plan_space.FAMILIES))
    parser.add_argument("--memory", action="store_true", help="compare also the bytes that are alive (slower)")
    parser.add_argument("--fsdp1", action="store_true", help="plans of dialect fsdp1 only")
    parser.add_argument("--commands", action="store_true", help="command lines of `plan` instead of plans")
    parser.add_argument("--cover", action="store_true", help="prefer plans whose pairs of features were drawn least")
    parser.add_argument("--no-kept", dest="kept", action="store_false", help="without the plans that differed once")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--explain", action="store_true", help="print what each side alone holds where most differs")
    args = parser.parse_args()
    seed = int(time.time()) if args.seed is None else args.seed
    end, results, pairs = time.time() + args.seconds, collections.Counter(), collections.Counter()
    tried, refusals_seen = collections.Counter(), collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        work = Work(folder)
        kept = json.loads((ROOT / "tests" / "torch" / "kept_plans.json").read_text())
        for name, case in kept.items() if args.kept else []:
            if case.get("lora") and not plan_space.PEFT:
                print(f"  {name}: not compared, there is no peft", flush=True)
                continue
            if not release.runs_here(case["plan"]):
                continue
            verdict, what = compare(work, case)
            refused = verdict == "we refuse" and release.RUNS >= release.NEWEST
            results["differs" if refused else verdict] += 1
            if verdict != "equal":
                print(f"  {name}: {verdict}: {what}", flush=True)
        for n in range(args.count):
            if time.time() > end:
                break
            drawn, case = drawn_case(args, seed, n, tried)
            verdict, what = compare(work, case, args.explain)
            results[verdict] += 1
            if verdict in ("equal", "differs"):
                pairs.update(plan_space.pairs(case))
            if verdict in ("differs", "PyTorch refuses"):
                print(f"  seed {drawn}: {verdict}", flush=True)
                if not args.no_shrink:
                    case = shrink(work, case, verdict)
                    what = compare(work, case)[1]
                show(case, what)
            elif verdict != "equal":
                refusals_seen[verdict, kind_of_refusal(what)].append((drawn, what))
    print(f"seeds from {seed}: " + ", ".join(f"{v} {k}" for k, v in results.items()))
    for (verdict, _), cases in sorted(refusals_seen.items()):
        print(f"  {verdict}, {len(cases)} times, such as seed {cases[0][0]}: {cases[0][1][:400]}")
    for kind, parts in work.kinds.items():
        print(f"  memory, {kind}: {len(parts)} times, up to {max(parts):.2%} of the peak ({KINDS[kind]})")
    print(f"{len(pairs)} pairs of features, {sum(n >= plan_space.ENOUGH for n in pairs.values())} of them in "
          f"{plan_space.ENOUGH} plans or more; the rarest: "
          + "; ".join(f"{a} with {b} {n}" for (a, b), n in pairs.most_common()[:-6:-1]))
    return 1 if results["differs"] or results["PyTorch refuses"] or not results["equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
