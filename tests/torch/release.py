"""Which PyTorch runs, and how random_plans.py compares with a release that is not the newest.

Plans of `fsdp2` then name the release ("fsdp2@2.9"), so that the program answers for what runs. What the program
refuses because it came later, this PyTorch must lack, too.
"""
import pathlib
import re

import torch

REQUIREMENTS = pathlib.Path(__file__).resolve().parent / "requirements.txt"
# Fields of a plan that a release may lack, at their defaults.
LATER = dict(reduce_scatter_buffers=1, separate_reduce_scatter=False, force_sum_reduction=False)


def numbers(text):
    return tuple(int(n) for n in re.match(r"(\d+)\.(\d+)", text).groups())


RUNS = numbers(torch.__version__)
NEWEST = numbers(re.search(r"^torch==(.*)$", REQUIREMENTS.read_text(), re.M).group(1))   # what `fsdp2` alone follows
REDUCES_ALONE = RUNS < (2, 10)               # a shard group of one rank runs a reduce-scatter


def dialect():
    """The dialect of plans that this PyTorch runs."""
    return "fsdp2" if RUNS >= NEWEST else "fsdp2@{}.{}".format(*RUNS)


def runs_here(plan):
    """Whether a kept plan is for this PyTorch: it names the release, or none."""
    _, _, named = plan.get("dialect", "fsdp2").partition("@")
    return not named or numbers(named) == RUNS


def came_later(refusal):
    """Whether the program refuses a plan for what this release lacks."""
    return "came with PyTorch" in refusal


def without_later(case):
    """The case without what this release lacks; None: it has nothing of that kind."""
    plan = dict(case["plan"])
    used = [key for key, default in LATER.items() if plan.get(key, default) != default]
    for key in used:
        del plan[key]
    return dict(case, plan=plan) if used else None
