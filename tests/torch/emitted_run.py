"""Runs the script that the program emits for a plan, on a fake process group, and logs what PyTorch issues."""
import sys
import types

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

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


def events_of(text):
    """The events (order_log.py) of a steady step of the script."""
    emitted = load(text)
    replicate, shard = emitted.PLAN["mesh"]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=replicate * shard)
    force_sum = averaging(emitted)
    try:
        torch.manual_seed(0)
        device = torch.device("cpu")
        with emitted.on_meta():
            model = emitted.build_model(emitted.model_config(Arguments), False)
            model = model.to(emitted.DTYPES[emitted.PLAN["master_dtype"]])
        model = emitted.apply_plan(model, emitted.make_mesh("cpu", False))
        emitted.materialize(model, device)
        firsts = [modules[0] for modules, *_ in emitted.units_of(model)]
        groups = {id(fully_shard.state(m)._fsdp_param_group): u for u, m in enumerate(firsts)
                  if fully_shard.state(m)._fsdp_param_group is not None}
        optimizer = emitted.make_optimizer(model)
        with OrderLog(groups, shard) as log:
            loss_of = emitted.loss_of

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
                clip, emitted.PLAN["clip_norm"] = emitted.PLAN["clip_norm"], None    # its norm has its own all-reduce
                emitted.train_step(model, optimizer, batches)
                emitted.PLAN["clip_norm"] = clip
                log.retained(firsts)
        return log.events
    finally:
        if force_sum is not None:
            FSDPModule.set_force_sum_reduction_for_comms = force_sum
        dist.destroy_process_group()
