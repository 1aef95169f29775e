"""Runs the script that the program emits for a plan, on a fake process group, and logs what PyTorch issues."""
import contextlib
import types
import weakref

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autograd_engine import as_engine
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


class Memory(TorchDispatchMode):
    """Bytes of the storages that are alive, numbers alone (losses, steps) and tables of the model left out."""

    def __init__(self):
        super().__init__()
        self.alive, self.total, self.peak = {}, 0, 0
        self.resize = torch.UntypedStorage.resize_

    def __enter__(self):
        memory, resize = self, self.resize

        def resized(storage, size):
            resize(storage, size)
            memory.see(storage)
        torch.UntypedStorage.resize_ = resized
        return super().__enter__()

    def __exit__(self, *args):
        torch.UntypedStorage.resize_ = self.resize
        return super().__exit__(*args)

    def see(self, storage):
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = 0
            weakref.finalize(storage, self.gone, key)
        self.total += storage.nbytes() - self.alive[key]
        self.alive[key] = storage.nbytes()
        self.peak = max(self.peak, self.total)

    def gone(self, key):
        self.total -= self.alive.pop(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t is DTensor for t in types):
            return NotImplemented            # DTensor asks again with its local tensors
        func = as_engine(func)
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.dim() > 0 and t.device.type == "cpu" and not is_fake(t):
                self.see(t.untyped_storage())
        return out


def is_fake(tensor):
    return isinstance(tensor, torch._subclasses.FakeTensor)


def events_of(text, memory=False):
    """(events, bytes): the events (order_log.py) of a steady step of the script; what is alive at each copy-out and
    each free, then the peak before the optimizer, if `memory`."""
    emitted = load(text)
    replicate, shard = emitted.PLAN["mesh"]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=replicate * shard)
    force_sum = averaging(emitted)
    try:
        with Memory() if memory else contextlib.nullcontext() as seen:
            return logged(emitted, shard, seen)
    finally:
        if force_sum is not None:
            FSDPModule.set_force_sum_reduction_for_comms = force_sum
        dist.destroy_process_group()


class Moments(list):
    """A list of events that notes what is alive at those that memory is compared at."""

    def __init__(self, memory):
        super().__init__()
        self.memory, self.bytes = memory, []

    def append(self, event):
        super().append(event)
        if self.memory is not None and event[0] in ("copy_out", "free"):
            self.bytes.append([event[0], event[1], self.memory.total])

    def clear(self):
        super().clear()
        self.bytes.clear()
        if self.memory is not None:
            self.memory.peak = self.memory.total


def logged(emitted, shard, memory):
    torch.manual_seed(0)
    with emitted.on_meta():
        model = emitted.build_model(emitted.model_config(Arguments), False)
        model = model.to(emitted.DTYPES[emitted.PLAN["master_dtype"]])
    model = emitted.apply_plan(model, emitted.make_mesh("cpu", False))
    emitted.materialize(model, torch.device("cpu"))
    firsts = [modules[0] for modules, *_ in emitted.units_of(model)]
    groups = {id(fully_shard.state(m)._fsdp_param_group): u for u, m in enumerate(firsts)
              if fully_shard.state(m)._fsdp_param_group is not None}
    optimizer = emitted.make_optimizer(model)
    step, loss_of = optimizer.step, emitted.loss_of
    peak = []

    def before_step(*args):
        if memory is not None:
            peak.append(memory.peak)
        return step(*args)
    optimizer.step = before_step
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
            clip, emitted.PLAN["clip_norm"] = emitted.PLAN["clip_norm"], None    # its norm has its own all-reduce
            emitted.train_step(model, optimizer, batches)
            emitted.PLAN["clip_norm"] = clip
            log.retained(firsts)
    return list(log.events), log.events.bytes + [["peak", -1, peak[-1]]] if memory is not None else []
