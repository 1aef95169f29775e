"""Runs the script that the program emits for a plan, on a fake process group, and logs what PyTorch issues."""
import contextlib
import types

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from memory_log import MemoryLog
from order_log import OrderLog


class Arguments:
    tiny, blocks, cpu, reference = False, 0, True, False


def load(text):
    """The script as a module."""
    module = types.ModuleType("emitted")
    exec(compile(text, "emitted.py", "exec"), module.__dict__)
    return module


def averaging(emitted):
    """The script sums and divides on processors, because gloo has no average. A GPU averages, and so does the fake
    group."""
    if emitted.PLAN.get("more", {}).get("force_sum_reduction"):
        return None
    original = FSDPModule.set_force_sum_reduction_for_comms
    FSDPModule.set_force_sum_reduction_for_comms = lambda module, value: None
    return original


def events_of(text, memory=False, explain=False, clips=False):
    """(events, bytes, storages, tables) of a steady step of the script: its events (order_log.py); if `memory`, what is
    alive at each copy-out and each free, then the peak before the optimizer; with `explain` also what makes up each of
    those; the most that the model's tables took. Gradients are clipped, if the plan says so, with `clips` only: their
    norm has an all-reduce of its own."""
    emitted = load(text)
    if memory and hasattr(emitted, "in_four_bits"):
        import four_bits
        four_bits.make_table()
        with four_bits.as_on_gpu():
            return issued(emitted, memory, explain, clips)
    return issued(emitted, memory, explain, clips)


def issued(emitted, memory, explain, clips):
    replicate, shard = emitted.PLAN["mesh"]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=replicate * shard)
    force_sum = averaging(emitted)
    try:
        return logged(emitted, shard, MemoryLog(explain) if memory else None, clips)
    finally:
        if force_sum is not None:
            FSDPModule.set_force_sum_reduction_for_comms = force_sum
        dist.destroy_process_group()


class Moments(list):
    """A list of events that notes what is alive at those that memory is compared at."""

    def __init__(self, memory):
        super().__init__()
        self.memory, self.bytes, self.alive = memory, [], []

    def append(self, event):
        super().append(event)
        if self.memory is not None and event[0] in ("copy_out", "free"):
            self.bytes.append([event[0], event[1], self.memory.total])
            if self.memory.explain:
                self.alive.append(self.memory.snapshot())

    def clear(self):
        super().clear()
        self.bytes.clear()
        self.alive.clear()
        if self.memory is not None:
            self.memory.begin_step()


def note_modules(model, memory):
    """Tables of the model belong to no step. A storage is named after the module whose forward made it."""
    def leave(module, inputs, result):
        memory.modules.pop()
    for buffer in model.buffers():
        memory.leave_out(buffer)
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda module, inputs, name=name: memory.modules.append(name))
        module.register_forward_hook(leave, always_call=True)


def logged(emitted, shard, memory, clips):
    torch.manual_seed(0)
    with emitted.on_meta():
        model = emitted.as_kept(emitted.build_model(emitted.model_config(Arguments), False))
    model = emitted.apply_plan(model, emitted.make_mesh("cpu", False))
    with memory or contextlib.nullcontext():
        return trained(emitted, model, shard, memory, clips)


def trained(emitted, model, shard, memory, clips):
    emitted.materialize(model, torch.device("cpu"))
    firsts = [modules[0] for modules, *_ in emitted.units_of(model)]
    if memory is not None:
        note_modules(model, memory)
    groups = {id(fully_shard.state(m)._fsdp_param_group): u for u, m in enumerate(firsts)
              if fully_shard.state(m)._fsdp_param_group is not None}
    optimizer = emitted.make_optimizer(model)
    step, loss_of = optimizer.step, emitted.loss_of
    peak = []

    def first_step(*args):                   # the second has the states; nothing of it is compared
        if memory is not None:
            peak[:] = [memory.peak, memory.at_peak]
        optimizer.step = second_step
        return step(*args)

    def second_step(*args):
        if memory is not None:
            peak[:] = [memory.peak, memory.at_peak]
    optimizer.step = first_step
    with OrderLog(groups, shard) as log:
        log.events = Moments(memory)

        def after_micro_batch(model, tokens):
            if state["micro_batch"]:
                log.retained(firsts)
            state["micro_batch"] += 1
            return loss_of(model, tokens)
        emitted.loss_of = after_micro_batch
        for _ in range(2):
            log.events.clear()
            state = {"micro_batch": 0}
            batches = [torch.randint(emitted.vocab_size(emitted.model_config(Arguments)),
                                     (n, emitted.PLAN["seq_len"] + 1)) for n in emitted.PLAN["micro_batches"]]
            for batch in batches if memory is not None else []:
                memory.leave_out(batch)
            clip = emitted.PLAN["clip_norm"]
            emitted.PLAN["clip_norm"] = clip if clips else None
            emitted.train_step(model, optimizer, batches)
            emitted.PLAN["clip_norm"] = clip
            log.retained(firsts)
    bytes_ = log.events.bytes + [["peak", -1, peak[0]]] if memory is not None else []
    return list(log.events), bytes_, log.events.alive + peak[1:], memory.largest_tables if memory is not None else 0
