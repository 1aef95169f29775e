#!/usr/bin/env python3
"""Records what PyTorch's FullyShardedDataParallel really issues for the toy model of tests/support/toy_model.h.

One process with the fake process group plays one rank of W (or of R x W) on the CPU. CPU streams do nothing, but FSDP
still enters them, lets them wait for one another, marks blocks for them and asks its rate limiter, so all of that is
logged in host order:

    ["cast", unit, elements, dtype, stream]            the shard in the compute dtype
    ["all_gather", unit, elements of the output, dtype, stream]
    ["free", unit]                                     of the gathered flat parameter
    ["host_wait", n]                                   the limiter waits for the n-th free of this step (-1: the last of
      the step before)
    ["flatten", elements, dtype]                       autograd concatenates the parameters' gradients into the flat one
    ["divide", elements, factor, stream]
    ["reduce_scatter", unit, elements of the input, dtype, stream]
    ["all_reduce", unit, elements, dtype, stream]
    ["wait", stream, other]                            `stream` waits for what `other` holds so far
    ["record", elements, dtype, stream]                a block that `stream` uses is marked for it before it is freed
    ["host_sync"]                                      the host waits for the compute stream
    ["offload", elements, dtype, stream]               what a recomputed block is called with goes to host memory
    ["fetch", elements, dtype, stream]                 and comes back

Besides: the flat parameters (offset of every parameter, padded size) and every rank's shard of them. Usage:

    python3 tests/torch/record_fsdp1.py            compares with tests/torch/golden/fsdp1_order.json, prints what
      changed
    python3 tests/torch/record_fsdp1.py --write    records it again
"""
import contextlib
import functools
import json
import logging
import pathlib
import sys
import warnings

import torch
import torch.cpu
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import _flat_param, _limiter_utils, _runtime_utils
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import golden_file
from order_log import DTYPES, NAMES
from toy import Toy

GOLDEN = pathlib.Path(__file__).parent / "golden" / "fsdp1_order.json"
PREFETCH = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}


def plain(name):
    return name.replace("_checkpoint_wrapped_module.", "").replace("_fsdp_wrapped_module.", "")


def units_of(config):
    """The plan's units, inner before outer, the root last (as in planner/plan.h)."""
    if "units" in config:
        return config["units"]
    whole = 2 if config.get("trained_outermost") else 1
    return [[f"layers.{i}"] for i in range(config["blocks"])] + [[""]] * whole


def strategy(config, unit):
    reshard = config["reshard"][unit] if isinstance(config["reshard"], list) else config["reshard"]
    if config["shard"] == 1:
        return ShardingStrategy.NO_SHARD
    if config.get("replicate", 1) > 1:
        return ShardingStrategy._HYBRID_SHARD_ZERO2 if reshard == "false" else ShardingStrategy.HYBRID_SHARD
    return ShardingStrategy.SHARD_GRAD_OP if reshard == "false" else ShardingStrategy.FULL_SHARD


def input_gradients(embedding):
    embedding.register_forward_hook(lambda module, args, output: output.requires_grad_(True))


def reentrant(block):
    """As transformers' gradient checkpointing before 5.0 has it: around the block's unit."""
    return wrappers.checkpoint_wrapper(block, checkpoint_impl=wrappers.CheckpointImpl.REENTRANT)


def wrapped(config, rank):
    """The model with its units wrapped, and the unit of every flat parameter's handle."""
    torch.manual_seed(0)
    model = Toy(config["blocks"], config["vocab"], config["width"], config["hidden"], config.get("tied", False),
                config.get("order"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not any(name.startswith(f) for f in config.get("frozen", []))
    shard, replicate = config["shard"], config.get("replicate", 1)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=shard * replicate)
    mesh = {}
    if replicate > 1 and shard > 1:
        mesh["device_mesh"] = init_device_mesh("cpu", (replicate, shard), mesh_dim_names=("replicate", "shard"))
    if config["param_dtype"] != "fp32" or config["reduce_dtype"] != "fp32":
        mesh["mixed_precision"] = MixedPrecision(param_dtype=DTYPES[config["param_dtype"]],
                                                 reduce_dtype=DTYPES[config["reduce_dtype"]])
    if config.get("offload"):
        mesh["cpu_offload"] = CPUOffload(offload_params=True)
    if config.get("input_gradients"):
        input_gradients(model.embed)
    inside = config.get("checkpoint") and not config.get("trained_outermost") and not config.get("reentrant")
    for i in range(config["blocks"]) if inside else ():
        again = wrappers.checkpoint_wrapper(model.layers[i])
        model.layers[i] = wrappers.offload_wrapper(again) if config.get("offload_activations") else again
    if config.get("trained_outermost"):
        options = dict(mesh, device_id=torch.device("cpu"), use_orig_params=config.get("use_orig_params", True),
                       backward_prefetch=PREFETCH[config.get("backward_prefetch", "pre")],
                       forward_prefetch=config.get("forward_prefetch", False),
                       limit_all_gathers=config.get("limit_all_gathers", True))
        return trained_outermost(model, model.layers, config, options)
    ignored = config.get("ignored", [])
    units, handles = units_of(config), {}
    for u, (name,) in enumerate(units):
        module = model.get_submodule(name)
        for i in range(config["blocks"]) if config.get("reentrant") and not name else ():
            model.layers[i] = reentrant(model.layers[i])
        unit = FSDP(module, device_id=torch.device("cpu"), sharding_strategy=strategy(config, u),
                    use_orig_params=config.get("use_orig_params", True),
                    backward_prefetch=PREFETCH[config.get("backward_prefetch", "pre")],
                    forward_prefetch=config.get("forward_prefetch", False),
                    limit_all_gathers=config.get("limit_all_gathers", True),
                    ignored_modules=[m for n, m in module.named_modules()
                                     if any(i == (name + "." + n).strip(".") for i in ignored)], **mesh)
        if unit._handle is not None:
            handles[unit._handle] = u
        if name:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(getattr(parent, "_checkpoint_wrapped_module", parent), name.rpartition(".")[2], unit)
        else:
            model = unit
    return model, handles


def trained_outermost(model, blocks, config, options):
    """ATorch's wrap_trainable_outmost (atorch/auto/opt_lib/zero_optimization.py): FSDP around FSDP around the model.

    The inner one and those of its blocks leave out what is trained; the outer one holds that. Checkpoints come last.
    """
    block = type(blocks[0])
    trained = [p for p in model.parameters() if p.requires_grad]
    inner = FSDP(model, ignored_states=trained, auto_wrap_policy=ModuleWrapPolicy({block}),
                 sharding_strategy=strategy(config, 0), **options)
    for module in FSDP.fsdp_modules(inner):
        module._ignored_params.clear()
    outer = FSDP(inner, sharding_strategy=strategy(config, -1), **options)
    if config.get("checkpoint"):
        wrappers.apply_activation_checkpointing(outer, check_fn=lambda module: isinstance(module, block))
    return outer, {unit._handle: u for u, unit in enumerate([*blocks, inner, outer])}


class Flattening(TorchDispatchMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.cat.default and out.dim() == 1:    # a model that runs again joins what has more
            self.log.append(["flatten", out.numel(), NAMES[out.dtype]])
        return out


class Recorder:
    """Patches what FSDP calls for as long as it is entered."""

    def __init__(self, handles):
        self.log, self.handles, self.unit, self.streams, self.frees = [], handles, None, {}, []

    def stream(self, stream=None):
        return self.streams.get(stream or torch.cpu.current_stream(), "other")

    def name_streams(self, root):
        if root._is_root and not self.streams:
            self.streams = {root._default_stream: "compute", root._pre_unshard_stream: "copy_in",
                            root._unshard_stream: "all_gather",
                            root._post_backward_stream: "reduce_scatter"}
            self.streams.setdefault(root._all_reduce_stream, "all_reduce")

    def patch(self, holder, name, make):
        original = getattr(holder, name)
        setattr(holder, name, make(original))
        self.stack.callback(setattr, holder, name, original)

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        log = self.log.append

        def of_handle(original):
            def call(handle, *args, **kwargs):
                before, self.unit = self.unit, self.handles[handle]
                try:
                    return original(handle, *args, **kwargs)
                finally:
                    self.unit = before
            return call

        def freed(original):
            def call(handle):
                log(["free", self.handles[handle]])
                return original(handle)
            return call

        def casted(original):
            def call(handle):
                log(["cast", self.handles[handle], handle.flat_param._local_shard.numel(),
                     NAMES[handle._fwd_bwd_param_dtype], self.stream()])
                return original(handle)
            return call

        def collective(what, size):
            def make(original):
                def call(*args, **kwargs):
                    tensor, elements = size(args)
                    log([what, self.unit, elements, NAMES[tensor.dtype], self.stream()])
                    return original(*args, **kwargs)
                return call
            return make

        def reduced(original):
            def call(state, handle, *args):
                before, self.unit = self.unit, self.handles[handle]
                try:
                    return original(state, handle, *args)
                finally:
                    self.unit = before
            return call

        def waited(original):
            def call(stream, other):
                if stream is not other:
                    log(["wait", self.stream(stream), self.stream(other)])
                return original(stream, other)
            return call

        def recorded(original):
            def call(tensor, stream):
                # Without effect, and left out: the result of a reduction is marked for its own stream when it is cast
                # or offloaded, a cast shard that is gone once more, and one in use twice.
                event = ["record", tensor.numel(), NAMES[tensor.dtype], self.stream(stream)]
                caller = sys._getframe(1).f_code.co_name
                if caller not in ("_cast_grad_to_param_dtype",
                                  "_offload_grad") and tensor.untyped_storage().size() > 0 and self.log[-1] != event:
                    log(event)
                return original(tensor, stream)
            return call

        def divided(original):
            def call(tensor, factor):
                if factor > 1:
                    log(["divide", tensor.numel(), factor, self.stream()])
                return original(tensor, factor)
            return call

        def enqueued(original):
            def call(queue, event):
                self.frees.append(event)
                return original(queue, event)
            return call

        def dequeued(original):
            def call(queue):
                event = original(queue)
                if event is not None:
                    log(["host_wait", next(i for i, e in enumerate(self.frees) if e is event) - self.before])
                return event
            return call

        def saved_on_cpu(_):
            def noted(what):
                def move(tensor):
                    log([what, tensor.numel(), NAMES[tensor.dtype], self.stream()])
                    return tensor
                return move

            def hooks(pin_memory=False, device_type="cuda"):
                assert pin_memory
                return torch.autograd.graph.saved_tensors_hooks(noted("offload"), noted("fetch"))
            return hooks

        def initialized(original):
            def call(state, *args):
                result = original(state, *args)
                self.name_streams(state)
                return result
            return call

        handle = _flat_param.FlatParamHandle
        self.patch(handle, "unshard", of_handle)
        self.patch(handle, "_free_unsharded_flat_param", freed)
        self.patch(handle, "_use_low_precision_shard", casted)
        self.patch(dist, "all_gather", collective("all_gather", lambda a: (a[1], a[1].numel() * len(a[0]))))
        # renamed in PyTorch 2.15
        scatter = next(n for n in ("reduce_scatter_single", "reduce_scatter_tensor") if hasattr(dist, n))
        self.patch(dist, scatter, collective("reduce_scatter", lambda a: (a[1], a[1].numel())))
        self.patch(dist, "all_reduce", collective("all_reduce", lambda a: (a[0], a[0].numel())))
        self.patch(_runtime_utils, "_reduce_grad", reduced)
        self.patch(_runtime_utils, "_reduce_grad_no_shard", reduced)
        self.patch(_runtime_utils, "_no_dispatch_record_stream", recorded)
        self.patch(_flat_param, "_no_dispatch_record_stream", recorded)
        self.patch(_runtime_utils, "_div_if_needed", divided)
        self.patch(_runtime_utils, "_lazy_init", initialized)
        self.patch(wrappers, "save_on_cpu", saved_on_cpu)
        self.patch(torch.cpu.Stream, "wait_stream", waited)
        torch.cpu.Stream.synchronize = lambda stream: log(["host_sync"])     # the CPU's has none
        self.stack.callback(lambda: delattr(torch.cpu.Stream, "synchronize"))
        self.patch(_limiter_utils._FreeEventQueue, "enqueue", enqueued)
        self.patch(_limiter_utils._FreeEventQueue, "dequeue_if_needed", dequeued)
        return self

    def __exit__(self, *exc):
        self.stack.close()

    def begin_step(self):
        self.before = len(self.frees)


def train(config):
    """Events of the first step and of a steady one."""
    model, handles = wrapped(config, 0)
    steps = []
    with Recorder(handles) as recorder:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for step in range(5):
            recorder.log.clear()
            recorder.begin_step()
            optimizer.zero_grad()
            for m in range(config["micro_batches"]):
                last = m + 1 == config["micro_batches"]
                with contextlib.nullcontext() if last or config.get("grad_sync",
                                                                    "every") == "every" else model.no_sync():
                    ids = torch.randint(0, config["vocab"], (2, 5))
                    out = model(ids)
                    loss = nn.functional.cross_entropy(out.flatten(0, 1).float(), ids.flatten())
                    with Flattening(recorder.log):
                        loss.backward()
            optimizer.step()
            steps.append(list(recorder.log))
    dist.destroy_process_group()
    assert steps[3] == steps[4], config["name"]
    return steps[0], steps[3]


def layout(config):
    """Per unit the flat parameter, and of every rank of the first replica what its shard holds of each parameter."""
    world = config["shard"]
    flat, shards = {}, {}
    for rank in range(world) if world <= 8 else (0, 1, world // 2, world - 1):
        model, handles = wrapped(config, rank)
        for handle, u in handles.items():
            p = handle.flat_param
            offsets = [s for (s, _), pad in zip(handle._get_flat_param_offsets(), p._is_padding_mask) if not pad]
            names = [plain(config_prefix(units_of(config)[u][0]) + n) for n in p._fqns]
            if rank == 0:
                flat[u] = {"unit": u, "params": dict(zip(names, offsets)),
                           "elements": p._unpadded_unsharded_size.numel(), "shard": p._local_shard.numel()
                           if hasattr(p, "_local_shard") else p._sharded_size.numel()}
            shards.setdefault(u, {})[rank] = [[i.offset_in_shard, i.numel_in_shard, i.intra_param_start_idx]
                                              if i.in_shard else None
                                              for i in p._shard_param_infos]
        dist.destroy_process_group()
    return [dict(flat[u], ranks=shards[u]) for u in sorted(flat)]


def config_prefix(name):
    return name + "." if name else ""


def record(config):
    first, steady = train(config)
    return {"config": config, "units": units_of(config), "layout": layout(config), "first": first, "steady": steady}


def outermost(base, accumulate):
    adapters = dict(base, frozen=["embed", "head", *(f"layers.{i}.up" for i in range(base["blocks"]))])
    checkpoint = dict(adapters, checkpoint=True, input_gradients=True)
    several = dict(checkpoint, micro_batches=accumulate["micro_batches"])
    return [
        dict(adapters, name="outermost"),
        dict(adapters, name="outermost-input-gradients", input_gradients=True),
        dict(adapters, name="outermost-no-limit", limit_all_gathers=False),
        dict(adapters, name="outermost-no-prefetch", backward_prefetch="none"),
        dict(adapters, name="outermost-post", backward_prefetch="post"),
        dict(adapters, name="outermost-two-bf16", shard=2, param_dtype="bf16"),
        dict(adapters, name="outermost-grad-op", reshard="false"),
        dict(adapters, name="outermost-hybrid", shard=2, replicate=2),
        dict(adapters, name="outermost-uneven-8", shard=8, vocab=13, width=7),
        dict(adapters, name="outermost-flat", use_orig_params=False),
        dict(adapters, name="outermost-no-shard-bf16", shard=1, replicate=4, param_dtype="bf16"),
        dict(checkpoint, name="outermost-checkpoint"),
        dict(checkpoint, name="outermost-atorch", forward_prefetch=True, param_dtype="bf16", reduce_dtype="bf16"),
        dict(checkpoint, name="outermost-atorch-two", forward_prefetch=True, param_dtype="bf16", reduce_dtype="bf16",
             shard=2, limit_all_gathers=False),
        dict(checkpoint, name="outermost-checkpoint-no-prefetch", backward_prefetch="none", limit_all_gathers=False),
        dict(several, name="outermost-every"),
        dict(several, name="outermost-last", grad_sync="last", param_dtype="bf16"),
        dict(several, name="outermost-last-grad-op", grad_sync="last", reshard="false"),
        dict(checkpoint, name="outermost-offload", offload=True),
    ]


def run_again(base, inside, accumulate):
    """Checkpoints with use_reentrant=True around the units of the blocks."""
    base, inside = dict(base, checkpoint=True, reentrant=True), dict(inside, reentrant=True)
    adapters = dict(inside, frozen=["embed", "layers.0.up", "layers.1.down", "head"], input_gradients=True)
    several = dict(base, micro_batches=accumulate["micro_batches"])
    return [
        dict(base, name="reentrant"),
        dict(base, name="reentrant-flat", use_orig_params=False),
        dict(base, name="reentrant-grad-op", reshard="false"),
        dict(base, name="reentrant-mixed-strategies", reshard=["false", "true", "false", "auto"]),
        dict(base, name="reentrant-post", backward_prefetch="post"),
        dict(base, name="reentrant-no-prefetch", backward_prefetch="none", limit_all_gathers=False),
        dict(base, name="reentrant-forward-prefetch", forward_prefetch=True, blocks=4),
        dict(base, name="reentrant-head", units=[["embed"], ["layers.0"], ["layers.1"], ["layers.2"], ["head"], [""]]),
        dict(base, name="reentrant-head-forward-prefetch", forward_prefetch=True,
             units=[["embed"], ["layers.0"], ["layers.1"], ["layers.2"], ["head"], [""]]),
        dict(base, name="reentrant-bf16-flat", param_dtype="bf16", use_orig_params=False, vocab=13, width=7, shard=8),
        dict(base, name="reentrant-hybrid", shard=2, replicate=2),
        dict(base, name="reentrant-no-shard-bf16", shard=1, replicate=4, param_dtype="bf16"),
        dict(base, name="reentrant-offload", offload=True),
        dict(several, name="reentrant-every"),
        dict(several, name="reentrant-last", grad_sync="last"),
        dict(several, name="reentrant-last-grad-op", grad_sync="last", reshard="false", param_dtype="bf16"),
        dict(inside, name="reentrant-nested"),
        dict(inside, name="reentrant-nested-grad-op", reshard="false"),
        dict(inside, name="reentrant-nested-forward-prefetch", forward_prefetch=True),
        dict(inside, name="reentrant-nested-post", backward_prefetch="post"),
        dict(inside, name="reentrant-nested-last", micro_batches=3, grad_sync="last"),
        dict(base, name="reentrant-frozen", frozen=["layers.1"]),
        dict(base, name="reentrant-frozen-post", frozen=["layers.1"], backward_prefetch="post"),
        dict(base, name="reentrant-frozen-grad-op", frozen=["layers.0", "layers.1"], reshard="false"),
        dict(base, name="reentrant-frozen-no-shard-bf16", frozen=["layers.1"], shard=1, replicate=4,
             param_dtype="bf16"),
        dict(adapters, name="reentrant-adapters"),
        dict(adapters, name="reentrant-adapters-bf16", shard=2, param_dtype="bf16"),
        dict(adapters, name="reentrant-adapters-no-prefetch", backward_prefetch="none", limit_all_gathers=False),
        dict(adapters, name="reentrant-adapters-forward-prefetch", forward_prefetch=True),
        dict(adapters, name="reentrant-adapters-last", micro_batches=3, grad_sync="last"),
    ]


def configs():
    base = dict(blocks=3, vocab=11, width=6, hidden=10, shard=4, reshard="auto", micro_batches=1, param_dtype="fp32",
                reduce_dtype="fp32")
    nested = [["layers.0.down"], ["layers.0"], ["layers.1.up"], ["layers.1"], ["head"], [""]]
    accumulate = dict(base, micro_batches=3)
    first = [["embed"], ["layers.0"], ["layers.1"], ["layers.2"], [""]]
    inside = dict(base, blocks=2, units=nested, checkpoint=True)     # units inside of checkpointed modules
    return [
        dict(base, name="full-shard"),
        dict(base, name="flat", use_orig_params=False),
        dict(base, name="grad-op", reshard="false"),
        dict(base, name="mixed-strategies", reshard=["false", "true", "false", "auto"]),
        dict(base, name="post", backward_prefetch="post"),
        dict(base, name="no-prefetch", backward_prefetch="none"),
        dict(base, name="forward-prefetch", forward_prefetch=True, blocks=4),
        dict(base, name="forward-prefetch-post", forward_prefetch=True, backward_prefetch="post"),
        dict(base, name="forward-prefetch-grad-op", forward_prefetch=True, reshard="false"),
        dict(base, name="no-limit", limit_all_gathers=False),
        dict(base, name="root", units=[[""]]),
        dict(base, name="tied", tied=True),
        dict(base, name="uneven-8", shard=8, vocab=13, width=7),
        dict(base, name="uneven-8-flat", shard=8, vocab=13, width=7, use_orig_params=False),
        dict(base, name="two", shard=2, use_orig_params=False),
        dict(base, name="wide-64", shard=64),
        dict(base, name="wide-64-flat", shard=64, use_orig_params=False),
        dict(base, name="bf16", param_dtype="bf16"),
        dict(base, name="bf16-flat", param_dtype="bf16", use_orig_params=False, vocab=13, width=7, shard=8),
        dict(base, name="bf16-reduce-bf16", param_dtype="bf16", reduce_dtype="bf16"),
        dict(base, name="bf16-grad-op", param_dtype="bf16", reshard="false"),
        dict(base, name="checkpoint", checkpoint=True),
        dict(base, name="checkpoint-offload", checkpoint=True, offload_activations=True),
        dict(base, name="checkpoint-offload-bf16-post", checkpoint=True, offload_activations=True, param_dtype="bf16",
             backward_prefetch="post"),
        dict(accumulate, name="checkpoint-offload-last", checkpoint=True, offload_activations=True, grad_sync="last"),
        dict(base, name="nested", blocks=2, units=nested),
        dict(base, name="nested-grad-op", blocks=2, units=nested, reshard="false"),
        dict(base, name="nested-forward-prefetch", blocks=2, units=nested, forward_prefetch=True),
        dict(base, name="nested-post", blocks=2, units=nested, backward_prefetch="post"),
        dict(accumulate, name="accumulate-every"),
        dict(accumulate, name="accumulate-last", grad_sync="last"),
        dict(accumulate, name="accumulate-last-grad-op", grad_sync="last", reshard="false", param_dtype="bf16"),
        dict(accumulate, name="accumulate-forward-prefetch", grad_sync="last", forward_prefetch=True),
        dict(base, name="hybrid", shard=2, replicate=2),
        dict(base, name="hybrid-bf16", shard=2, replicate=4, param_dtype="bf16", reduce_dtype="bf16"),
        dict(accumulate, name="hybrid-zero2-accumulate", shard=2, replicate=4, reshard="false"),
        dict(base, name="no-shard", shard=1, replicate=4),
        dict(base, name="no-shard-bf16", shard=1, replicate=4, param_dtype="bf16", reduce_dtype="bf16"),
        dict(accumulate, name="no-shard-accumulate", shard=1, replicate=4, param_dtype="bf16"),
        dict(accumulate, name="no-shard-last", shard=1, replicate=4, grad_sync="last"),
        dict(base, name="one-rank", shard=1),
        dict(base, name="offload", offload=True),
        dict(base, name="offload-grad-op-bf16", offload=True, reshard="false", param_dtype="bf16"),
        dict(base, name="ignored", ignored=["head"]),
        dict(base, name="frozen-units", frozen=["layers.0", "layers.1"]),
        dict(base, name="frozen-mixed", frozen=["layers.1.up", "embed"]),
        dict(base, name="frozen-first", units=first, frozen=["embed", "layers.0"]),
        dict(base, name="frozen-first-grad-op", units=first, frozen=["embed", "layers.0"], reshard="false"),
        dict(base, name="frozen-grad-op", frozen=["layers.1"], reshard="false"),
        dict(base, name="frozen-flat-bf16", frozen=["layers.1"], use_orig_params=False, param_dtype="bf16"),
        dict(base, name="frozen-post", frozen=["layers.1"], backward_prefetch="post"),
        dict(base, name="frozen-no-prefetch", frozen=["layers.1"], backward_prefetch="none"),
        dict(base, name="frozen-forward-prefetch", frozen=["layers.1"], forward_prefetch=True),
        dict(accumulate, name="frozen-last", frozen=["layers.1"], grad_sync="last"),
        dict(accumulate, name="frozen-last-grad-op", frozen=["layers.1"], grad_sync="last", reshard="false"),
        dict(base, name="frozen-nested", blocks=2, units=nested, frozen=["layers.1.up", "layers.0.down"]),
        dict(base, name="frozen-offload", frozen=["layers.1"], offload=True),
        dict(base, name="frozen-hybrid", frozen=["layers.1"], shard=2, replicate=2),
        dict(base, name="frozen-no-shard-bf16", frozen=["layers.1"], shard=1, replicate=4, param_dtype="bf16"),
        dict(base, name="frozen-checkpoint", frozen=["layers.1"], checkpoint=True),
        dict(inside, name="nested-checkpoint"),
        dict(inside, name="nested-checkpoint-grad-op", reshard="false"),
        dict(inside, name="nested-checkpoint-forward-prefetch", forward_prefetch=True),
        dict(inside, name="nested-checkpoint-post", backward_prefetch="post"),
        dict(inside, name="nested-checkpoint-no-prefetch", backward_prefetch="none", param_dtype="bf16"),
        dict(inside, name="nested-checkpoint-flat", use_orig_params=False, limit_all_gathers=False),
        dict(inside, name="nested-checkpoint-last", micro_batches=3, grad_sync="last"),
        dict(inside, name="nested-checkpoint-hybrid", shard=2, replicate=2),
        dict(inside, name="nested-checkpoint-no-shard", shard=1, replicate=4),
        dict(inside, name="nested-checkpoint-offload", offload=True),
        dict(inside, name="nested-checkpoint-frozen", frozen=["embed", "layers.0.up", "layers.1.down", "head"]),
        dict(inside, name="nested-checkpoint-frozen-inside", frozen=["layers.0.down", "layers.1.up"]),
        dict(inside, name="nested-checkpoint-first", forward_prefetch=True,
             units=[["layers.0.up"], ["layers.0"], ["layers.1.up"], ["layers.1"], [""]]),
        dict(base, name="used-twice", order=[0, 1, 2, 0]),
        dict(base, name="used-twice-in-turn", order=[0, 1, 0, 2, 1]),
        dict(base, name="used-thrice", order=[0, 1, 0, 2, 0]),
        dict(base, name="used-twice-grad-op", order=[0, 1, 2, 0], reshard="false"),
        dict(base, name="used-twice-post", order=[0, 1, 2, 0], backward_prefetch="post"),
        dict(base, name="used-twice-bf16-flat", order=[0, 1, 2, 1], param_dtype="bf16", use_orig_params=False),
        dict(base, name="used-twice-hybrid", order=[0, 1, 2, 1], shard=2, replicate=2),
        dict(accumulate, name="used-twice-every", order=[0, 1, 2, 1]),
        dict(accumulate, name="used-twice-last", order=[0, 1, 2, 1], grad_sync="last"),
        dict(accumulate, name="used-twice-last-grad-op", order=[0, 1, 2, 0], grad_sync="last", reshard="false"),
        *outermost(dict(base, trained_outermost=True), accumulate),
        *run_again(base, inside, accumulate),
    ]


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    # needs a GPU; the address is all that changes
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    cases = []
    for c in configs():
        if "--only" in sys.argv and c["name"] not in sys.argv:
            continue
        cases.append(record(c))
    result = {"_about": "What PyTorch's FullyShardedDataParallel issues on rank 0 in the first and in a steady step of "
                        "the toy model, and how "
                        "it lays flat parameters out. Recorded by tests/torch/record_fsdp1.py, which explains the "
                        "events.",
              "torch": torch.__version__.split("+")[0], "cases": cases}
    text = golden_file.text_of(result)
    if "--only" in sys.argv:
        for c in cases:
            print(*c["steady"], *c["layout"], sep="\n")
        return 0
    return golden_file.finish(GOLDEN, text)


if __name__ == "__main__":
    sys.exit(main())
