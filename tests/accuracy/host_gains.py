#!/usr/bin/env python3
"""Are plans that mix as much faster on this machine as predicted? Pairs of plans on 2 ranks of the host backend.

  tests/accuracy/host_gains.py build/release/fsdp-plan                    # a Markdown table; up to an hour
  tests/accuracy/host_gains.py build/release/fsdp-plan --pairs 8 --only 2 # eight pairs of runs of the second case

Each case has a memory limit under which the best plan that treats all blocks alike must give up speed, and a mix need
not. Both plans come from `plan` with the same flags but --search. They run in turn, uniform-mix, mix-uniform, ..., the
cases in turn, too, so that what else the machine does slows all alike. A pair's gain is the ratio of the two median
steps, less one. A pair counts only if other processes left the machine alone in both of its runs: that is decided by
their processor time, never by the ratio. The measured gain is the median of the pairs; its interval lies between two of
the ordered gains, and holds the true median with at least 95 % whatever their distribution. "Processor" is the same of
the processor seconds of whole runs, their start included, over all pairs: other load moves it less.

Exit code 1: too few pairs count, or in a case whose predicted gain is 10 % or more the measured gain is less than half
of it, or its interval holds zero. A plan that differs in order or memory from its prediction is an error.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time

WIDE = "generic --layers 8 --hidden 256 --heads 4 --ffn 768"
LEAST = 0.1  # a predicted gain below which nothing is claimed
FEWEST = 6  # pairs that have a 95 % interval
ACCUMULATED = "--micro-batch 1 --grad-accum 8"
# What mixes, sizes of the model, tokens per sequence, batch, limit.
CASES = [
    ("eight micro-batches, 8 GiB", f"{WIDE} --vocab 1024", 32, ACCUMULATED, "8GiB"),
    ("eight micro-batches, 120 MiB", f"{WIDE} --vocab 1024", 32, ACCUMULATED, "120MiB"),
    ("eight micro-batches, 100 MiB", f"{WIDE} --vocab 1024", 32, ACCUMULATED, "100MiB"),
    ("eight micro-batches, 80 MiB", f"{WIDE} --vocab 1024", 32, ACCUMULATED, "80MiB"),
    ("one micro-batch, 226 MiB", f"{WIDE} --vocab 2048", 256, "--micro-batch 4 --grad-accum 1", "226MiB"),
]


def call(words, allowed=(0,)):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    if done.returncode not in allowed:
        sys.exit(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def places(pairs):
    """The ordered values (from 1) between which the median lies with at least 95 %."""
    tail = 0.0
    for below in range(pairs):
        tail += math.comb(pairs, below) / 2**pairs
        if 2 * tail > 0.05:
            return max(1, below), pairs + 1 - max(1, below)
    return 1, pairs


def interval(values):
    ordered = sorted(values)
    return tuple(ordered[place - 1] for place in places(len(ordered)))


def middle(values):
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Plan:
    """A plan of one search, its prediction and its runs."""

    def __init__(self, program, folder, costs, model, question, search):
        self.program, self.search = program, search
        path, self.predicted_in, self.measured_in = (
            os.path.join(folder, f"{search}.{what}.json") for what in ("plan", "prediction", "measurement"))
        self.words = ["--plan", path, "--model", *model]
        call([program, "plan", "--model", *model, "--cluster", "host", "--gpus", 2, "--costs", costs,
              "--search", search, *question, "-o", path])
        call([program, "simulate", *self.words, "--cluster", "host", "--costs", costs, "-o", self.predicted_in])
        self.predicted = read(self.predicted_in)["step_time_s"]
        self.steps, self.processor, self.others = [], [], []

    def run(self, steps):
        warm_up = 2
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        call([self.program, "run", *self.words, "--backend", "host", "--warmup", warm_up, "--steps", steps,
              "-o", self.measured_in])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        measurement = read(self.measured_in)
        self.steps.append(measurement["median_step_s"])
        self.others.append(measurement["machine"]["other_cores"])
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.processor.append(busy / (steps + warm_up))

    def compare(self):
        """Order and memory of the last run beside the prediction; times may differ as they like."""
        report = call([self.program, "validate", self.predicted_in, self.measured_in], allowed=(0, 1))
        if "order equal, memory equal" not in report.splitlines()[0]:
            sys.exit(f"{self.search}: {report.splitlines()[0]}")


class Case:
    """Two plans that answer one question, and the pairs of their runs that count."""

    def __init__(self, program, folder, costs, case):
        self.name, sizes, tokens, batch, limit = case
        question = ["--seq-len", tokens, *batch.split(), "--memory-limit", limit]
        self.uniform, self.mix = (Plan(program, folder, costs, sizes.split(), question, search)
                                  for search in ("uniform", "joint"))
        self.predicted = self.uniform.predicted / self.mix.predicted - 1
        self.tried, self.pairs, self.gains, self.by_processor = 0, 0, [], []

    def run_pair(self, steps, most_others):
        """Counts if others left the machine alone in both runs, whatever the ratio is."""
        for plan in (self.uniform, self.mix) if self.tried % 2 == 0 else (self.mix, self.uniform):
            plan.run(steps)
        if self.tried == 0:
            self.uniform.compare()
            self.mix.compare()
        self.tried += 1
        self.by_processor.append(self.uniform.processor[-1] / self.mix.processor[-1] - 1)
        if max(self.uniform.others[-1], self.mix.others[-1]) <= most_others:
            self.gains.append(self.uniform.steps[-1] / self.mix.steps[-1] - 1)

    def row(self):
        """The row, and whether it refutes the prediction."""
        counts, enough = self.predicted >= LEAST, len(self.gains) >= FEWEST
        cells = [self.name, f"{1e3 * self.uniform.predicted:.0f}, {1e3 * self.mix.predicted:.0f}",
                 f"{1e3 * middle(self.uniform.steps):.0f}, {1e3 * middle(self.mix.steps):.0f}",
                 f"{self.predicted:+.1%}"]
        refuted = False
        if enough:
            low, high = interval(self.gains)
            refuted = counts and (middle(self.gains) < self.predicted / 2 or low <= 0)
            cells += [f"{middle(self.gains):+.1%}, {low:+.1%} to {high:+.1%}"]
        else:
            cells += ["-"]
        said = "too few pairs" if not enough else "below 10 %" if not counts else "NO" if refuted else "yes"
        low, high = interval(self.by_processor) if self.tried >= FEWEST else (-math.inf, math.inf)
        cells += [f"{len(self.gains)} of {self.tried}", f"{middle(self.by_processor):+.1%}, {low:+.1%} to {high:+.1%}",
                  said]
        return "| " + " | ".join(cells) + " |", refuted or not enough


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--pairs", type=int, default=15, help="that count, of each case")
    parser.add_argument("--steps", type=int, default=5, help="measured in each run")
    parser.add_argument("--most-others", type=float, default=0.3, help="cores that others may keep busy in a run")
    parser.add_argument("--minutes", type=float, default=60, help="then no further pair is begun")
    parser.add_argument("--costs", help="of an earlier calibration; default: a new one")
    parser.add_argument("--only", default="", help="numbers of cases, from 1, as 1,3")
    args = parser.parse_args()
    if args.pairs < FEWEST:
        parser.error(f"--pairs: fewer than {FEWEST} have no 95 % interval")
    chosen = [CASES[int(n) - 1] for n in args.only.split(",")] if args.only else CASES
    with tempfile.TemporaryDirectory() as folder:
        costs = args.costs or os.path.join(folder, "costs.json")
        if not args.costs:
            call([args.program, "calibrate", "--backend", "host", "--ranks", 2, "-o", costs])
        cases = []
        for number, case in enumerate(chosen):
            own = os.path.join(folder, str(number))
            os.mkdir(own)
            cases.append(Case(args.program, own, costs, case))
        ends = time.monotonic() + 60 * args.minutes
        while time.monotonic() < ends and any(len(c.gains) < args.pairs for c in cases):
            for case in cases:
                if len(case.gains) < args.pairs and time.monotonic() < ends:
                    case.run_pair(args.steps, args.most_others)
        if any(c.tried == 0 for c in cases):
            sys.exit("--minutes: too few for one pair of each case")
        print("| what mixes, limit | predicted ms, uniform, mix | measured ms, all runs | predicted gain | "
              "measured, 95 % interval | pairs that count | processor, 95 % interval | at least half |")
        print("|---|---|---|---|---|---|---|---|")
        rows = [case.row() for case in cases]
        for text, _ in rows:
            print(text)
    return 1 if any(bad for _, bad in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
