#!/usr/bin/env python3
"""Compares what PyTorch does with what the program says for plans that nobody wrote down.

Draws small models and plans (plan_space.py), asks the program for the plan's script and for its step
(`show plan --emit pytorch`, `show step --json --buffers`), runs the script on a fake process group, and compares what
both issue, in host order. A difference is shrunk to its smallest plan. What the program refuses is tried in PyTorch.

    python3 tests/torch/random/random_plans.py --seconds 60             prints what differs; exit 1 if anything does
    python3 tests/torch/random/random_plans.py --seed 7 --count 1       one plan again
    ... --memory       also the bytes that are alive, exactly, but for what planned.KINDS says
    ... --fsdp1        FullyShardedDataParallel, wrapped here as the plan says (fsdp1_run.py)
    ... --commands     plans that `fsdp-plan plan` makes of drawn flags (command_space.py)
    ... --adapters     models with adapters only
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

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "torch"))      # what recorders share

import command_space
import emitted_run
import fsdp1_run
import plan_space
import planned
import refusals
import release

PROGRAM = os.environ.get("FSDP_PLAN_PROGRAM", str(ROOT / "build" / "release" / "fsdp-plan"))
torch.set_num_threads(1)
logging.disable(logging.WARNING)



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

    def step(self, plan):
        """As transformers does it; where units have dtypes of their own as torchtitan does, in the same order."""
        how = "torchtitan" if plan_space.own_dtypes(plan) else "hf"
        return json.loads(self.ask("show", "step", "--plan", self.folder / "plan.json", *self.model(),
                                   "--implementation", how, "--json", "--buffers"))


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
            step = work.step(plan)
            script = work.script_of_model(case)
        else:
            script, step = work.script(), work.step(plan)
    except Refused as no:
        return refused(work, case, str(no))
    if plan["dialect"] == "fsdp1":
        return compare_fsdp1(script, step, plan)
    try:
        theirs, alive, storages, tables = emitted_run.events_of(script, case["memory"], explain)
    except Exception as error:  # whatever PyTorch raises is its answer
        return "PyTorch refuses", f"{type(error).__name__}: {str(error)[:300]}"
    model = case["model"]
    heads = model.get("num_attention_heads")
    ours = planned.Planned(step, plan, explain, grouped=model.get("num_key_value_heads", heads) != heads,
                           latent="kv_lora_rank" in model)
    difference = first_difference(ours.events, theirs)
    if difference is None and case["memory"] and not plan_space.own_dtypes(plan):
        difference = planned.memory_difference(ours, alive, tables, work.kinds)
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
    if args.adapters:
        seeds = range(seed + 1000 * n, seed + 1000 * (n + 1))
        drawn = next(s for s in seeds if draw(plan_space.generator(s)).get("lora"))
        return drawn, draw(plan_space.generator(drawn))
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
    parser.add_argument("--adapters", action="store_true", help="models with adapters only")
    parser.add_argument("--cover", action="store_true", help="prefer plans whose pairs of features were drawn least")
    parser.add_argument("--no-kept", dest="kept", action="store_false", help="without the plans that differed once")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--explain", action="store_true", help="print what each side alone holds where most differs")
    args = parser.parse_args()
    if args.cover and args.commands:
        parser.error("--cover compares features of drawn plans, and --commands draws no plans: give one of them")
    seed = int(time.time()) if args.seed is None else args.seed
    end, results, pairs = time.time() + args.seconds, collections.Counter(), collections.Counter()
    tried, refusals_seen = collections.Counter(), collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        work = Work(folder)
        kept = json.loads(pathlib.Path(__file__).with_name("kept_plans.json").read_text())
        for name, case in kept.items() if args.kept else []:
            if case.get("lora") and not plan_space.PEFT:
                print(f"  {name}: not compared, there is no peft", flush=True)
                continue
            if "base=" in (case.get("lora") or "") and not plan_space.BITSANDBYTES:
                print(f"  {name}: not compared, there is no bitsandbytes", flush=True)
                continue
            if not release.runs_here(case["plan"]):
                continue
            verdict, what = compare(work, case)
            older = release.RUNS < release.NEWEST and verdict in ("PyTorch runs", "both refuse", "we refuse")
            results[verdict if verdict == "equal" or older else "differs"] += 1
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
        print(f"  memory, {kind}: {len(parts)} times, up to {max(parts):.2%} of the peak")
    print(f"{len(pairs)} pairs of features, {sum(n >= plan_space.ENOUGH for n in pairs.values())} of them in "
          f"{plan_space.ENOUGH} plans or more; the rarest: "
          + "; ".join(f"{a} with {b} {n}" for (a, b), n in pairs.most_common()[:-6:-1]))
    return 1 if results["differs"] or results["PyTorch refuses"] or not results["equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
