#!/usr/bin/env python3
"""Records what FullyShardedDataParallel of PyTorch 1.13.1 issues for the toy model of tests/support/toy_model.h.

It has a form of its own: that FSDP was one file, and runs on CUDA alone. One process plays rank 0 of W on the CPU:
streams and events of CUDA are names here, and collectives move nothing. What is logged is in host order, as
tests/torch/record_fsdp1.py has it, and besides:

    ["pad", elements, dtype, stream]     of the unsharded gradient: a copy, also where it is a multiple of W long

Usage, in an environment of Python 3.7 to 3.10 with torch==1.13.1 and numpy below 2:

    python tests/torch/early/record_fsdp1.py            compares with tests/torch/golden/fsdp1_order_1.13.json
    python tests/torch/early/record_fsdp1.py --write    records it again
"""
import contextlib
import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as functional
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import flat_param, fully_sharded_data_parallel as fsdp_module
from torch.utils._python_dispatch import TorchDispatchMode

import golden_file
from toy import Toy

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "fsdp1_order_1.13.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NAMES = {v: k for k, v in DTYPES.items()}
PREFETCH = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}
STREAMS = {"all_gather": "all_gather", "pre_all_gather": "copy_in", "post_backward": "reduce_scatter"}


class Stream:
    """A name in place of a CUDA stream."""
    log, current = None, None

    def __init__(self, *_):
        self.name = "other"

    def wait_stream(self, other):
        if other is not self:
            Stream.log.append(["wait", self.name, other.name])


class Event:
    def record(self, *_):
        pass

    def synchronize(self):
        pass


@contextlib.contextmanager
def on_stream(stream):
    before, Stream.current = Stream.current, stream
    yield
    Stream.current = before


class Group:
    """Rank 0 of some ranks that nobody asks for anything."""

    def __init__(self, ranks):
        self.ranks = ranks

    def rank(self):
        return 0

    def size(self):
        return self.ranks


class Flattening(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.cat.default and out.dim() == 1:
            Stream.log.append(["flatten", out.numel(), NAMES[out.dtype]])
        return out


def pretend_cuda():
    torch.cuda.is_available = lambda: True
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.Stream, torch.cuda.Event = Stream, Event
    torch.cuda.current_stream = lambda *_: Stream.current
    torch.cuda.stream = on_stream
    FSDP._get_compute_device = lambda *_: torch.device("cpu")
    fsdp_module._ExecOrderData._check_order = lambda *_: None                    # of the first step: asks other ranks
    FSDP._cast_forward_inputs = lambda self, *args, **kwargs: (args, kwargs)     # token numbers, on the device


class Recorder:
    """Puts itself between FSDP and what it calls, for good."""

    def __init__(self):
        self.log, self.handles, self.unit, self.frees, self.before = [], {}, None, [], 0
        Stream.log = self.log
        handle = flat_param.FlatParamHandle
        self.wrap(handle, "unshard", self.of_unit)
        self.wrap(handle, "_free_unsharded_flat_param", self.freed)
        self.wrap(handle, "_use_low_precision_shard", self.casted)
        self.wrap(FSDP, "_post_backward_hook", lambda original: lambda module, h, *rest: self.inside(
            h, original, module, h, *rest))
        self.wrap(FSDP, "_init_streams", self.named)
        self.wrap(functional, "pad", self.padded)
        self.wrap(default_hooks, "reduce_scatter_hook", self.dividing)
        self.wrap(fsdp_module._FreeEventQueue, "enqueue", self.enqueued)
        self.wrap(fsdp_module._FreeEventQueue, "dequeue_if_needed", self.dequeued)
        torch.Tensor.record_stream = lambda tensor, stream: self.recorded(tensor, stream)
        dist._all_gather_base = lambda output, part, *_: self.note("all_gather", output)
        dist._reduce_scatter_base = lambda output, whole, **_: self.note("reduce_scatter", whole)

    def wrap(self, holder, name, make):
        setattr(holder, name, make(getattr(holder, name)))

    def note(self, what, tensor):
        self.log.append([what, self.unit, tensor.numel(), NAMES[tensor.dtype], Stream.current.name])

    def inside(self, handle, original, *args):
        before, self.unit = self.unit, self.handles[handle]
        original(*args)
        self.unit = before

    def of_unit(self, original):
        return lambda handle: self.inside(handle, original, handle)

    def freed(self, original):
        def call(handle):
            self.log.append(["free", self.handles[handle]])
            original(handle)
        return call

    def casted(self, original):
        def call(handle):
            original(handle)
            self.inside(handle, self.note, "cast", handle.flat_param._mp_shard)
        return call

    def named(self, original):
        def call(root):
            original(root)
            for key, stream in root._streams.items():
                stream.name = STREAMS[key]
        return call

    def padded(self, original):
        def call(tensor, pad):
            out = original(tensor, pad)
            assert out.data_ptr() != tensor.data_ptr()       # a copy, whatever is padded
            self.log.append(["pad", out.numel(), NAMES[out.dtype], Stream.current.name])
            return out
        return call

    def dividing(self, original):
        def call(state, gradient, output):
            divide = torch.Tensor.div_

            def divided(tensor, factor):
                self.log.append(["divide", tensor.numel(), factor, Stream.current.name])
                return divide(tensor, factor)
            torch.Tensor.div_ = divided
            original(state, gradient, output)
            torch.Tensor.div_ = divide
        return call

    def recorded(self, tensor, stream):
        if sys._getframe(2).f_code.co_name != "_cast_grad_to_param_dtype":        # for its own stream, without effect
            self.log.append(["record", tensor.numel(), NAMES[tensor.dtype], stream.name])

    def enqueued(self, original):
        def call(queue, event):
            self.frees.append(event)
            original(queue, event)
        return call

    def dequeued(self, original):
        def call(queue):
            event = original(queue)
            if event is not None:
                self.log.append(["host_wait", next(i for i, e in enumerate(self.frees) if e is event) - self.before])
            return event
        return call


def units_of(config):
    """The plan's units, inner before outer, the root last (as in planner/plan.h)."""
    if "units" in config:
        return config["units"]
    return [[f"layers.{i}"] for i in range(config["blocks"])] + [[""]]


def wrapped(config, recorder):
    torch.manual_seed(0)
    model = Toy(config["blocks"], config["vocab"], config["width"], config["hidden"], config.get("tied", False))
    mixed = {}
    if config["param_dtype"] != "fp32" or config["reduce_dtype"] != "fp32":
        # Where neither is narrow PyTorch 1.13 wants to be told nothing (its issue 90584).
        types = {key: DTYPES[config[key]] if config[key] != "fp32" or key == "reduce_dtype" else None
                 for key in ("param_dtype", "reduce_dtype")}
        mixed["mixed_precision"] = MixedPrecision(**types)
    for i in range(config["blocks"]) if config.get("checkpoint") else ():
        model.layers[i] = checkpoint_wrapper(model.layers[i])
    group, recorder.handles = Group(config["shard"]), {}
    layout = []
    for u, (name,) in enumerate(units_of(config)):
        strategy = ShardingStrategy.SHARD_GRAD_OP if config["reshard"] == "false" else ShardingStrategy.FULL_SHARD
        unit = FSDP(model.get_submodule(name), process_group=group, device_id=torch.device("cpu"),
                    sharding_strategy=strategy, backward_prefetch=PREFETCH[config.get("backward_prefetch", "pre")],
                    limit_all_gathers=config.get("limit_all_gathers", True), **mixed)
        for handle in unit._handles:
            recorder.handles[handle] = u
            p = handle.flat_param
            layout.append({"unit": u, "elements": p._unpadded_unsharded_size.numel(), "shard": p.numel()})
        if name:
            setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], unit)
        else:
            model = unit
    return model, layout


def record(config, recorder):
    """Events of the first step and of a steady one."""
    Stream.current = Stream()
    Stream.current.name = "compute"
    model, layout = wrapped(config, recorder)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    steps = []
    for _ in range(5):
        recorder.log.clear()
        recorder.before = len(recorder.frees)
        optimizer.zero_grad(set_to_none=True)
        for m in range(config["micro_batches"]):
            last = m + 1 == config["micro_batches"] or config.get("grad_sync", "every") == "every"
            with contextlib.nullcontext() if last else model.no_sync():
                ids = torch.randint(0, config["vocab"], (2, 5))
                loss = nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
                with Flattening():
                    loss.backward()
        optimizer.step()
        steps.append(list(recorder.log))
    assert steps[3] == steps[4], config["name"]
    return {"config": config, "units": units_of(config), "layout": layout, "first": steps[0], "steady": steps[3]}


def configs():
    # Parameters lie one after the other in the flat one: use_orig_params is of PyTorch 2.0.
    base = dict(blocks=3, vocab=11, width=6, hidden=10, shard=4, reshard="auto", micro_batches=1, param_dtype="fp32",
                reduce_dtype="fp32", use_orig_params=False)
    bf16 = dict(base, param_dtype="bf16", reduce_dtype="bf16")
    nested = [["layers.0.down"], ["layers.0"], ["layers.1.up"], ["layers.1"], ["head"], [""]]
    return [
        dict(base, name="full-shard"),
        dict(base, name="grad-op", reshard="false"),
        dict(base, name="post", backward_prefetch="post"),
        dict(base, name="no-prefetch", backward_prefetch="none"),
        dict(base, name="no-limit", limit_all_gathers=False),
        dict(base, name="root", units=[[""]]),
        dict(base, name="tied", tied=True),
        dict(base, name="uneven-8", shard=8, vocab=13, width=7),
        dict(base, name="two", shard=2),
        dict(base, name="wide-64", shard=64),
        dict(base, name="bf16", param_dtype="bf16"),
        dict(bf16, name="bf16-reduce-bf16"),
        dict(bf16, name="bf16-uneven", vocab=13, width=7, shard=8),
        dict(bf16, name="bf16-grad-op", reshard="false"),
        dict(base, name="reduce-bf16", reduce_dtype="bf16"),
        dict(base, name="nested", blocks=2, units=nested),
        dict(base, name="nested-post", blocks=2, units=nested, backward_prefetch="post"),
        dict(bf16, name="checkpoint-post-no-limit", checkpoint=True, backward_prefetch="post",
             limit_all_gathers=False),
        dict(bf16, name="checkpoint-post", checkpoint=True, backward_prefetch="post"),
        dict(base, name="accumulate-every", micro_batches=3),
        dict(bf16, name="accumulate-every-post", micro_batches=3, backward_prefetch="post", checkpoint=True),
        dict(base, name="accumulate-last", micro_batches=3, grad_sync="last"),
    ]


def main():
    warnings.filterwarnings("ignore")
    if not torch.__version__.startswith("1.13."):
        print("this records PyTorch 1.13, not " + torch.__version__, file=sys.stderr)
        return 2
    pretend_cuda()
    recorder = Recorder()
    cases = [record(c, recorder) for c in configs()]
    result = {"_about": "What FullyShardedDataParallel of PyTorch 1.13 issues on rank 0 in the first and in a steady "
                        "step of the toy model. Recorded by tests/torch/early/record_fsdp1.py, which explains the "
                        "events.",
              "torch": torch.__version__.split("+")[0], "cases": cases}
    return golden_file.finish(GOLDEN, golden_file.text_of(result))


if __name__ == "__main__":
    sys.exit(main())
