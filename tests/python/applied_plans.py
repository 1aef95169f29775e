#!/usr/bin/env python3
"""Random plans, carried out by fsdp_plan.apply instead of by the emitted script: PyTorch's order beside `show step`'s.

Runs tests/torch/random/random_plans.py (its options) with two things replaced: what shards the model, and what turns
gradient synchronisation on and off over the micro-batches. Each applied model is checked (fsdp_plan.differences) before
its first forward, and during each micro-batch.

    python3 tests/python/applied_plans.py --seed 1 --count 20
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TORCH = ROOT / "tests" / "torch"
sys.path[:0] = [str(TORCH / "random"), str(TORCH), str(ROOT / "python")]

import emitted_run
import fsdp1_run
import random_plans
import refusals

import fsdp_plan
from fsdp_plan.dialects import fsdp1


class Applied:
    """The script's module, with apply_plan, units_of and train_step of this package."""

    def __init__(self, work, emitted):
        self.work, self.emitted, self.step = work, emitted, None
        emitted.apply_plan, emitted.units_of, emitted.train_step = self.apply, self.units_of, self.train_step

    def plan(self):
        return fsdp_plan.Plan.load(self.work.folder / "plan.json", self.work.folder / "model.json", self.work.lora)

    def apply(self, model, mesh):
        self.step = fsdp_plan.apply(model, self.plan(), mesh)
        self.hold()
        return model

    def hold(self, micro_batch=None):
        if found := fsdp_plan.differences(self.step, micro_batch=micro_batch):
            raise AssertionError(f"check() finds {found[:3]}")

    def units_of(self, model):
        return [([module],) for _, module in self.step.firsts]

    def train_step(self, model, optimizer, batches):
        optimizer.zero_grad()
        for i, (weight, batch) in enumerate(self.step.micro_batches(batches)):
            self.hold(i)
            (self.emitted.loss_of(model, batch) * weight).backward()
        optimizer.step()


def applied_by_package():
    """Replaces what tests/torch shards with."""
    works, load = [], emitted_run.load

    class Work(random_plans.Work):
        def __init__(self, folder):
            super().__init__(folder)
            works.append(self)

    def loaded(text):
        return Applied(works[-1], load(text)).emitted

    def wrapped(model, values):
        plan = fsdp_plan.Plan.load(values, works[-1].folder / "model.json")
        step = fsdp_plan.apply(model, plan)
        if found := fsdp_plan.differences(step):
            raise AssertionError(f"check() finds {found[:3]}")
        firsts = {unit.first: unit.index for unit in plan.units}
        return step.model, {m._handle: firsts[name] for name, m in fsdp1.units_of(step.model) if m._handle}

    def by_script(*arguments):
        """What the program refuses is tried with the script, as there it is."""
        emitted_run.load, fsdp1_run.wrapped = load, wrap
        try:
            return carried_out(*arguments)
        finally:
            emitted_run.load, fsdp1_run.wrapped = loaded, wrapped

    wrap, carried_out = fsdp1_run.wrapped, refusals.carried_out
    random_plans.Work, emitted_run.load, fsdp1_run.wrapped, refusals.carried_out = Work, loaded, wrapped, by_script


if __name__ == "__main__":
    applied_by_package()
    sys.exit(random_plans.main())
