"""What PyTorch's FullyShardedDataParallel issues for a plan of dialect fsdp1, and what the program says that it does.

The program writes no script for fsdp1: the model is that of the fsdp2 script for the same model, and its units are
wrapped here as the plan says. The recorder is that of record_fsdp1.py. Marks of blocks for streams ("record") are left
out: recorded configurations compare them.
"""
import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.testing._internal.distributed.fake_pg import FakeStore

from order_log import DTYPES
from record_fsdp1 import PREFETCH, Flattening, Recorder, plain, reentrant

STEPS = 6
RUNS = ("cast", "all_gather", "flatten", "divide", "reduce_scatter", "all_reduce")
STREAMS = ("compute", "copy_in", "all_gather", "reduce_scatter", "all_reduce")


def strategy(plan, unit):
    replicate, shard = (d["size"] for d in plan["mesh"])
    keeps = unit["reshard_after_forward"] is False
    if shard == 1:
        return ShardingStrategy.NO_SHARD
    if replicate > 1:
        return ShardingStrategy._HYBRID_SHARD_ZERO2 if keeps else ShardingStrategy.HYBRID_SHARD
    return ShardingStrategy.SHARD_GRAD_OP if keeps else ShardingStrategy.FULL_SHARD


def options_of(plan):
    replicate, shard = (d["size"] for d in plan["mesh"])
    options = dict(device_id=torch.device("cpu"), use_orig_params=plan.get("use_orig_params", True),
                   forward_prefetch=plan["forward_prefetch"] > 0, limit_all_gathers=plan.get("limit_all_gathers", True))
    prefetch = "post" if plan.get("backward_post") else "pre" if plan["backward_prefetch"] else "none"
    options["backward_prefetch"] = PREFETCH[prefetch]
    if replicate > 1 and shard > 1:
        options["device_mesh"] = init_device_mesh("cpu", (replicate, shard), mesh_dim_names=("replicate", "shard"))
    if (plan["param_dtype"], plan["reduce_dtype"]) != ("fp32", "fp32"):
        options["mixed_precision"] = MixedPrecision(param_dtype=DTYPES[plan["param_dtype"]],
                                                    reduce_dtype=DTYPES[plan["reduce_dtype"]])
    if plan.get("offload"):
        options["cpu_offload"] = CPUOffload(offload_params=True)
    return options


def replace(model, name, module):
    parent = model.get_submodule(name.rpartition(".")[0])
    setattr(getattr(parent, "_checkpoint_wrapped_module", parent), name.rpartition(".")[2], module)


def wrapped(model, plan):
    """The model with its units wrapped, and the unit of every flat parameter's handle."""
    options, handles = options_of(plan), {}
    around = list(plan["checkpointed"]) if plan.get("reentrant") else []
    for name in plan["checkpointed"] if not around else ():
        replace(model, name, checkpoint_wrapper(model.get_submodule(name)))
    for u, unit in enumerate(plan["units"]):
        name, = unit["modules"]
        for again in [m for m in around if not name or m.startswith(name + ".")]:
            replace(model, again, reentrant(model.get_submodule(again)))
            around.remove(again)
        module = model.get_submodule(name)
        left_out = [m for n, m in module.named_modules()
                    if plain((name + "." + n).strip(".")).removesuffix("._checkpoint_wrapped_module")
                    .removesuffix("._fsdp_wrapped_module") in plan.get("ignored", [])]
        made = FSDP(module, sharding_strategy=strategy(plan, unit), ignored_modules=left_out, **options)
        if made._handle is not None:
            handles[made._handle] = u
        if name:
            replace(model, name, made)
        else:
            model = made
    return model, handles


def events_of(emitted, plan):
    """Events of a steady step."""
    replicate, shard = (d["size"] for d in plan["mesh"])
    if plan.get("loop", {}).get("loss_in_model"):
        emitted.PLAN.setdefault("more", {})["loss_in_model"] = True
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=replicate * shard)
    try:
        torch.manual_seed(0)
        class Arguments:
            tiny, blocks = False, 0
        config = emitted.model_config(Arguments)
        model, handles = wrapped(emitted.build_model(config, False), plan)
        return trained(emitted, model, handles, plan, emitted.vocab_size(config))
    finally:
        dist.destroy_process_group()


def trained(emitted, model, handles, plan, vocab):
    pin = torch.Tensor.pin_memory
    torch.Tensor.pin_memory = lambda tensor: tensor      # needs a GPU
    try:
        return repeated(emitted, model, handles, plan, vocab)
    finally:
        torch.Tensor.pin_memory = pin


def repeated(emitted, model, handles, plan, vocab):
    before = []
    with Recorder(handles) as recorder:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for step in range(STEPS):
            recorder.log.clear()
            recorder.begin_step()
            optimizer.zero_grad()
            for i, sequences in enumerate(plan["micro_batches"]):
                reduces = plan["grad_sync"] == "every" or i + 1 == len(plan["micro_batches"])
                with contextlib.nullcontext() if reduces else model.no_sync():
                    loss = emitted.loss_of(model, torch.randint(vocab, (sequences, plan["seq_len"] + 1)))
                    with Flattening(recorder.log):
                        loss.backward()
            optimizer.step()
            before, last = (list(recorder.log), before)
        if before != last:
            raise AssertionError("steps do not repeat")
    return before


def recorded(events):
    """(events, known): without the waits of streams, which become what each operation knows to have finished."""
    log, known, streams = [], [], {s: {} for s in STREAMS + ("other",)}
    for event in events:
        if event[0] == "wait":
            join(streams[event[1]], streams[event[2]])
        elif event[0] != "record":
            log.append(event)
            if event[0] in RUNS:
                stream = "compute" if event[0] == "flatten" else event[-1]
                known.append(dict(streams[stream]))
                streams[stream][stream] = streams[stream].get(stream, 0) + 1
    return log, known


def join(into, other):
    for stream, n in other.items():
        into[stream] = max(into.get(stream, 0), n)


class Planned:
    """The same of a step as the program shows it."""

    def __init__(self, step):
        self.buffers, self.ops = step["buffers"], step["ops"]
        self.events, self.known, self.clocks, self.free_ops = [], [], [], []
        self.streams = {s: {} for s in STREAMS}
        self.find_frees()
        for op in self.ops:
            self.run(op)

    def find_frees(self):
        """The compute operation after which the n-th gathered parameter was freed."""
        last = -1
        for i, op in enumerate(self.ops):
            if op["stream"] == "compute":
                last = i
            for b in op["memory"]:
                if b < 0 and self.buffers[-1 - b]["kind"] == "unsharded parameters":
                    self.free_ops.append(last)

    def elements(self, b):
        sizes = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "i64": 8}
        return [self.buffers[b]["bytes"] // sizes[self.buffers[b]["dtype"]], self.buffers[b]["dtype"]]

    def run(self, op):
        if op["action"] == "host_wait":
            waits = op["waits"] + [-1 - w for w in op.get("waits_of_step_before", [])]
            self.events.append(["host_sync"] if len(waits) > 1 else ["host_wait", waits[0] if waits else None])
        now = self.streams.get(op["stream"])
        if now is not None:
            for w in op["waits"]:
                join(now, self.clocks[w])
            event = self.event_of(op)
            if event is not None:
                self.events.append(event)
                self.known.append(dict(now))
                now[op["stream"]] = now.get(op["stream"], 0) + 1
        self.clocks.append(dict(now or {}))
        for b in op["memory"]:
            if b < 0 and self.buffers[-1 - b]["kind"] == "unsharded parameters":
                self.events.append(["free", self.buffers[-1 - b]["unit"]])

    def event_of(self, op):
        action, args, stream = op["action"], op["args"], op["stream"]
        if action == "cast_shard":
            return ["cast", op["unit"], *self.elements(args[1]), stream]
        if action in ("all_gather", "reduce_scatter", "all_reduce"):
            return [action, op["unit"], *self.elements(args[0]), stream]
        if action == "divide_gradient":
            elements, _ = self.elements(args[0])
            return ["divide", elements, op["divisor"], stream]
        if action == "scatter_copy_in":
            flat = next(a for a in args if a >= 0 and self.buffers[a]["parameter"] < 0
                        and self.buffers[a]["kind"] != "scratch")
            return ["flatten", *self.elements(flat)]
        return None

    def waited(self, event):
        """PyTorch's ordinal of the free that the host waits for, as what a step says."""
        if event[0] != "host_wait":
            return event
        n, count = event[1], len(self.free_ops)
        if n >= 0:
            return ["host_wait", self.free_ops[n]]
        return ["host_wait", None if n + count < 0 else -1 - self.free_ops[n + count]]


def difference(step, events):
    """None, or where the program's step and PyTorch's events part."""
    ours = Planned(step)
    theirs, known = recorded(events)
    theirs = [ours.waited(e) for e in theirs]
    for what, a, b in (("events", ours.events, theirs), ("known", ours.known, known)):
        if a != b:
            i = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            return {"what": what, "at": i, "before": a[max(0, i - 3):i], "ours": a[i:i + 4], "theirs": b[i:i + 4],
                    "lengths": [len(a), len(b)]}
    return None
