#!/usr/bin/env python3
"""Records what PyTorch's fully_shard really issues for the toy model of tests/support/toy_model.h.

One process with the fake process group plays rank 0 of W (or of R x W) ranks. Logged in host order: collectives with
element counts, dtypes, communicator and reduction; copy-outs; divisions; frees of unsharded parameters, gather buffers
and reduce-scatter inputs; the unsharded gradients that a micro-batch leaves behind (order_log.py). Usage:

    python3 tests/torch/record_fsdp2.py            compares with tests/torch/golden/fsdp2_order.json, prints what
      changed
    python3 tests/torch/record_fsdp2.py --write    records it again

With an older PyTorch (release.py): the cases of RELEASES whose events differ from the newest's, in fsdp2_order_2.9.json
and the like.
"""
import json
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import golden_file
import release
from order_log import DTYPES, OrderLog, param_groups
from toy import Toy

GOLDEN = pathlib.Path(__file__).parent / "golden" / "fsdp2_order.json"


def units_of(config):
    """The plan's units: names of modules, inner before outer, the root last (as in planner/plan.h)."""
    if "units" in config:
        return config["units"]
    blocks = [f"layers.{i}" for i in range(config["blocks"])]
    k = config.get("group", 1)
    units = [blocks[i:i + k] for i in range(0, len(blocks), k)] if config["wrap"] != "root" else []
    if config["wrap"] == "titan":
        units = [["embed"]] + units + [["head"]]
    return units + [[""]]


def reshard_value(text):
    return {"auto": None, "true": True, "false": False}.get(text, int(text) if text.isdigit() else None)


def policy_of(config, own):
    """A unit's: its own dtypes, or those of all units."""
    dtypes = {key: DTYPES[own.get(key, config.get(key))] for key in ("param_dtype", "reduce_dtype")}
    if "output_dtype" in own:
        dtypes["output_dtype"] = DTYPES[own["output_dtype"]]
    return MixedPrecisionPolicy(**dtypes, cast_forward_inputs=own.get("cast_forward_inputs", True))


def own_mesh_of(config, ranks):
    """The mesh of units with one of their own, if there are any."""
    sizes = {own["shard"] for own in config.get("unit_options", {}).values() if "shard" in own}
    if not sizes:
        return None
    size, = sizes
    if size == ranks:
        return init_device_mesh("cpu", (ranks,), mesh_dim_names=("own_shard",))
    return init_device_mesh("cpu", (ranks // size, size), mesh_dim_names=("own_replicate", "own_shard"))


def placement_fn(model, config, units, own_mesh):
    """The arguments that say how single parameters are sharded: on which dimension, and over which mesh."""
    dims = {id(p): config["shard_dims"][n] for n, p in model.named_parameters() if n in config.get("shard_dims", {})}
    further = {id(p) for u, names in enumerate(units) if "group_of" in config.get("unit_options", {}).get(str(u), {})
               for n in names for p in model.get_submodule(n).parameters()}
    if not dims and not further:
        return {}
    if not further:
        return {"shard_placement_fn": lambda p: Shard(dims[id(p)]) if id(p) in dims else None}
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo, ShardPlacementResult
    info = (HSDPMeshInfo(own_mesh, shard_mesh_dim=1, replicate_mesh_dim=0) if own_mesh.ndim == 2
            else FSDPMeshInfo(own_mesh, shard_mesh_dim=0))

    def placement(p):
        shard = Shard(dims[id(p)]) if id(p) in dims else None
        return ShardPlacementResult(shard, info) if id(p) in further else shard
    return {"shard_placement_fn": placement}


def apply_fully_shard(model, config, units, mesh, own_mesh):
    """fully_shard on every unit, with its options; returns the unit of each parameter group and the first module of
    each unit (none for a further group of a unit)."""
    ignored = {p for n, p in model.named_parameters() if n in config.get("ignored", [])}
    options = dict(offload_policy=CPUOffloadPolicy(pin_memory=False) if config.get("offload")
                   else OffloadPolicy(), **placement_fn(model, config, units, own_mesh))
    if ignored:
        options["ignored_params"] = ignored
    groups, firsts, further = {}, [], {}
    for u, names in enumerate(units):
        own = config.get("unit_options", {}).get(str(u), {})
        modules = [model.get_submodule(n) for n in names]
        if "group_of" in own:
            further[own["group_of"]] = u
            firsts.append(None)
            continue
        fully_shard(modules[0] if len(modules) == 1 else modules, mesh=own_mesh if "shard" in own else mesh,
                    reshard_after_forward=reshard_value(own.get("reshard", config["reshard"])),
                    mp_policy=policy_of(config, own), **options)
        for param_group in param_groups(fully_shard.state(modules[0])):
            of_own = own_mesh is not None and param_group.mesh_info.mesh == own_mesh
            groups[id(param_group)] = further.get(names[0], u) if of_own else u
        firsts.append(modules[0])
    names = {unit[0]: m for unit, m in zip(units, firsts)}
    for u, module in enumerate(firsts):
        own = config.get("unit_options", {}).get(str(u), {})
        if module is None:
            continue
        if "forward_prefetch" in own:
            module.set_modules_to_forward_prefetch([names[n] for n in own["forward_prefetch"]])
        if "backward_prefetch" in own:
            module.set_modules_to_backward_prefetch([names[n] for n in own["backward_prefetch"]])
        if "gradient_divide_factor" in own:
            module.set_gradient_divide_factor(own["gradient_divide_factor"])
        if not own.get("unshard_in_backward", True):
            module.set_unshard_in_backward(False)
    if config.get("reduce_scatter_buffers", 1) > 1:
        model.set_reduce_scatter_max_input_buffers(config["reduce_scatter_buffers"])
    if config.get("separate_reduce_scatter"):
        model.set_separate_reduce_scatter_group(True)
    if config.get("force_sum_reduction"):
        for module in filter(None, firsts):
            module.set_force_sum_reduction_for_comms(True)
    if config.get("loop", {}).get("unshard_async"):
        model._set_unshard_async_op(True)
    if config.get("forward_prefetch"):
        model.set_modules_to_forward_prefetch(list(model.layers)[:config["forward_prefetch"]])
    for i, layer in enumerate(model.layers if config["wrap"] == "block" and config.get("group", 1) == 1 else []):
        if config.get("forward_prefetch"):
            layer.set_modules_to_forward_prefetch(list(model.layers)[i + 1:i + 1 + config["forward_prefetch"]])
        if config.get("backward_prefetch", 1) > 1:
            first = max(0, i - config["backward_prefetch"])
            layer.set_modules_to_backward_prefetch(list(reversed(list(model.layers)[first:i])))
    return groups, firsts


def set_switches(config, units, firsts, last, only=None):
    """What a training loop sets before each micro-batch. only: a unit whose last backward comes before the others'."""
    for u, module in enumerate(firsts):
        if module is None:
            continue
        if only is not None:
            last = u == only
        own = config.get("unit_options", {}).get(str(u), {})
        sync = own.get("grad_sync", config.get("grad_sync", "every"))
        module.set_requires_gradient_sync(last or sync != "last", recurse=False)
        module.set_requires_all_reduce(last or sync != "reduce-scatter-only", recurse=False)
        if not own.get("reshard_after_backward", config.get("reshard_after_backward", True)):
            module.set_reshard_after_backward(last, recurse=False)


def loss_of(logits, ids):
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), ids.flatten())


def reshard_by_hand(config, units, firsts):
    for unit, module in zip(units, firsts):
        if unit[0] in config.get("loop", {}).get("reshard", []):
            module.reshard()


def run_parts(model, config, units, firsts, hidden, ids, last):
    """The head and the loss, a part of the tokens at a time, each with a backward of its own; then that of the rest."""
    loop, count = config["loop"], config["loss_chunks"]
    head = next(u for u, names in enumerate(units) if names[-1] == "head")
    alone = len(units[head]) == 1
    flat = hidden.flatten(0, 1)
    parts = [p.requires_grad_() for p in flat.detach().chunk(count)]
    for p, (part, targets) in enumerate(zip(parts, ids.flatten().chunk(count), strict=True)):
        set_switches(config, units, firsts, False, only=head if alone and last and p + 1 == count else -1)
        model.set_is_last_backward(not loop.get("last_backward"))
        loss_of(model.head(part), targets).backward()
    set_switches(config, units, firsts, last)
    reshard_by_hand(config, units, firsts)
    model.set_is_last_backward(last or not loop.get("last_backward"))
    flat.backward(torch.cat([p.grad for p in parts]))


def micro_batches(model, config, units, firsts, log):
    """The forwards and backwards of a step."""
    loop, count = config.get("loop", {}), config["micro_batches"]
    forwards, named = loop.get("forwards", 1), {unit[0]: m for unit, m in zip(units, firsts)}
    for m in range(0, count, forwards):
        last = m + forwards == count
        set_switches(config, units, firsts, last)
        losses = []
        for _ in range(forwards):
            for name in loop.get("unshard", []):
                named[name].unshard(async_op=True)
            ids = torch.randint(0, config["vocab"], (2, 5))
            out = model(ids)
            losses.append(loss_of(out, ids) if model.with_head else None)
        if model.with_head:
            reshard_by_hand(config, units, firsts)
            model.set_is_last_backward(last or not loop.get("last_backward"))
            sum(losses).backward()
        else:
            run_parts(model, config, units, firsts, out, ids, last)
        log.retained(firsts)


def clip(model, own_mesh):
    """By the norm over two meshes: torch.nn.utils takes one over one mesh, so that torchtitan takes two."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    parts = [[p for p in parameters if (p.grad.device_mesh == own_mesh) == own] for own in (True, False)]
    norms = [nn.utils.get_total_norm([p.grad for p in part]).full_tensor() for part in parts if part]
    norm = sum(n ** 2 for n in norms) ** 0.5
    for part in parts:
        nn.utils.clip_grads_with_norm_(part, 1.0, norm)


def record(config):
    torch.manual_seed(0)
    model = Toy(config["blocks"], config["vocab"], config["width"], config["hidden"], config.get("tied", False),
                config.get("order"), not config.get("loop", {}).get("chunk_head"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in config.get("frozen", []))
    shard, replicate = config["shard"], config.get("replicate", 1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=shard * replicate)
    mesh = (init_device_mesh("cpu", (replicate, shard), mesh_dim_names=("replicate", "shard")) if replicate > 1
            else init_device_mesh("cpu", (shard,), mesh_dim_names=("shard",)))
    units = units_of(config)
    if config.get("checkpoint"):
        for i in range(config["blocks"]):
            model.layers[i] = checkpoint_wrapper(model.layers[i])
    own_mesh = own_mesh_of(config, shard * replicate)
    groups, firsts = apply_fully_shard(model, config, units, mesh, own_mesh)

    try:
        own_units = [u for u in range(len(units)) if "shard" in config.get("unit_options", {}).get(str(u), {})]
        with OrderLog(groups, shard, (own_mesh, own_units), casts=True) as log:
            optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=False)
            for step in range(2):                # the second is the steady one
                log.events.clear()
                optimizer.zero_grad()
                micro_batches(model, config, units, firsts, log)
                if config.get("clip"):
                    clip(model, own_mesh)
                optimizer.step()
    finally:
        dist.destroy_process_group()
    local = {n.replace("_checkpoint_wrapped_module.", ""): list(p.to_local().shape)
             for n, p in model.named_parameters() if hasattr(p, "to_local")}
    return {"config": config, "units": units, "events": log.events, "local_shapes": local}


def configs():
    base = dict(blocks=3, vocab=11, width=6, hidden=10, shard=4, wrap="block", reshard="auto", micro_batches=1,
                param_dtype="fp32", reduce_dtype="fp32")
    nested = [["layers.0.down"], ["layers.0"], ["layers.1.up"], ["layers.1"], ["head"], [""]]
    return [
        dict(base, name="default"),
        dict(base, name="reshard", reshard="true"),
        dict(base, name="keep", reshard="false"),
        dict(base, name="grouped", blocks=4, group=2),
        dict(base, name="root", wrap="root"),
        dict(base, name="titan", wrap="titan"),
        dict(base, name="titan-reshard", wrap="titan", reshard="true"),
        dict(base, name="uneven-8", shard=8),
        dict(base, name="wide-64", shard=64),
        dict(base, name="tied", tied=True),
        dict(base, name="bf16", param_dtype="bf16", reduce_dtype="fp32"),
        dict(base, name="bf16-reduce-bf16", param_dtype="bf16", reduce_dtype="bf16"),
        dict(base, name="checkpoint", checkpoint=True, reshard="true"),
        dict(base, name="checkpoint-grouped", blocks=4, group=2, checkpoint=True),
        dict(base, name="accumulate-every", micro_batches=3),
        dict(base, name="accumulate-last", micro_batches=3, grad_sync="last", param_dtype="bf16"),
        dict(base, name="hsdp", shard=2, replicate=2),
        dict(base, name="hsdp-bf16", shard=2, replicate=4, param_dtype="bf16"),
        dict(base, name="hsdp-rs-only", shard=2, replicate=2, micro_batches=3, grad_sync="reduce-scatter-only"),
        dict(base, name="forward-prefetch-1", blocks=4, forward_prefetch=1, reshard="true"),
        dict(base, name="forward-prefetch-2", blocks=4, forward_prefetch=2, reshard="true"),
        dict(base, name="one-rank", shard=1),
        dict(base, name="unit-as-long-as-the-root", blocks=2, units=[["layers.1"], ["embed", "head"], [""]]),
        dict(base, name="unit-as-long-as-the-root-reshard", blocks=2, units=[["layers.1"], ["embed", "head"], [""]],
             reshard="true"),
        dict(base, name="nested", blocks=2, units=nested),
        dict(base, name="nested-reshard", blocks=2, units=nested, reshard="true", param_dtype="bf16"),
        dict(base, name="nested-keep", blocks=2, units=nested, reshard="false"),
        dict(base, name="nested-checkpoint", blocks=2, units=nested, reshard="true", checkpoint=True),
    ] + more_configs(base, nested)


def more_configs(base, nested):
    titan = dict(base, wrap="titan")
    every = {str(u): dict(forward_prefetch=f, backward_prefetch=b) for u, f, b in [
        ("3", ["layers.0", "layers.1"], []), ("0", ["layers.1", "layers.2"], []), ("1", ["layers.2"], ["layers.0"]),
        ("2", [], ["layers.1", "layers.0"])]}
    every = {u: {k: v for k, v in o.items() if v} for u, o in every.items()}
    half = ["embed.weight", "layers.0.up.weight", "layers.0.down.weight"]
    return [
        dict(base, name="reshard-2", reshard="2"),
        dict(base, name="reshard-2-bf16", reshard="2", param_dtype="bf16", shard=8),
        dict(base, name="reshard-1", reshard="1"),
        dict(base, name="reshard-whole-group", reshard="4"),
        dict(base, name="reshard-4-of-8-hsdp", reshard="4", shard=8, replicate=2),
        dict(base, name="reshard-mixed",
             unit_options={"0": {"reshard": "2"}, "1": {"reshard": "false"}, "3": {"reshard": "true"}}),
        dict(base, name="reshard-2-nested", blocks=2, units=nested, reshard="2"),
        dict(base, name="reshard-2-checkpoint", reshard="2", checkpoint=True),
        dict(base, name="prefetch-lists", unit_options=every, reshard="true"),
        dict(base, name="prefetch-backward-2", blocks=4, reshard="true", unit_options={
            "3": {"backward_prefetch": ["layers.2", "layers.1"]}, "2": {"backward_prefetch": ["layers.1", "layers.0"]},
            "1": {"backward_prefetch": ["layers.0"]}}),
        dict(base, name="prefetch-mistargeted", reshard="true",
             unit_options={"0": {"backward_prefetch": ["layers.2"]}}),
        dict(base, name="prefetch-mistargeted-forward", unit_options={"2": {"forward_prefetch": ["layers.0"]}}),
        dict(base, name="prefetch-all-at-once", blocks=4, reshard="true",
             unit_options={"4": {"forward_prefetch": [f"layers.{i}" for i in range(4)]}}),
        dict(base, name="prefetch-none-in-backward",
             unit_options={str(u): {"backward_prefetch": [f"layers.{u}"]} for u in range(3)}),
        dict(titan, name="unshard-in-backward-off", reshard="true", unit_options={"0": {"unshard_in_backward": False}}),
        dict(base, name="keep-after-backward", reshard="false", micro_batches=3, reshard_after_backward=False),
        dict(base, name="keep-after-backward-reshard", reshard="true", micro_batches=2, reshard_after_backward=False),
        dict(base, name="keep-root-after-backward", reshard="false", micro_batches=3,
             unit_options={"3": {"reshard_after_backward": False}}),
        dict(base, name="keep-after-backward-last", reshard="false", micro_batches=3, reshard_after_backward=False,
             grad_sync="last"),
        dict(base, name="some-skip-sync", micro_batches=3,
             unit_options={"0": {"grad_sync": "last"}, "2": {"grad_sync": "last"}}),
        dict(base, name="root-skips-sync", micro_batches=3, unit_options={"3": {"grad_sync": "last"}},
             param_dtype="bf16"),
        dict(base, name="accumulate-last-bf16", micro_batches=2, grad_sync="last", param_dtype="bf16",
             reduce_dtype="bf16"),
        dict(base, name="accumulate-last-tied", micro_batches=2, grad_sync="last", param_dtype="bf16", tied=True),
        dict(base, name="narrow-reduce", reduce_dtype="bf16"),
        dict(base, name="narrow-reduce-accumulate", reduce_dtype="bf16", micro_batches=2, grad_sync="last"),
        dict(base, name="hsdp-rs-only-bf16", shard=2, replicate=2, micro_batches=3, grad_sync="reduce-scatter-only",
             param_dtype="bf16"),
        dict(base, name="hsdp-rs-only-one-unit", shard=2, replicate=2, micro_batches=2,
             unit_options={"1": {"grad_sync": "reduce-scatter-only"}}),
        dict(base, name="hsdp-last", shard=2, replicate=2, micro_batches=2, grad_sync="last"),
        dict(base, name="hsdp-reduce-bf16", shard=2, replicate=2, param_dtype="bf16", reduce_dtype="bf16"),
        dict(base, name="scatter-buffers-2", blocks=4, reduce_scatter_buffers=2),
        dict(base, name="scatter-buffers-3", blocks=5, reduce_scatter_buffers=3, reshard="true"),
        dict(base, name="separate-scatter", separate_reduce_scatter=True),
        dict(base, name="separate-scatter-hsdp-buffers-2", shard=2, replicate=2, separate_reduce_scatter=True,
             reduce_scatter_buffers=2),
        dict(base, name="divide-by-7", unit_options={"1": {"gradient_divide_factor": 7.0}}),
        dict(base, name="divide-by-ranks-hsdp", shard=2, replicate=2,
             unit_options={str(u): {"gradient_divide_factor": 4.0} for u in range(4)}),
        dict(base, name="divide-by-shards-hsdp", shard=2, replicate=2,
             unit_options={str(u): {"gradient_divide_factor": 2.0} for u in range(4)}),
        dict(base, name="force-sum", force_sum_reduction=True),
        dict(base, name="force-sum-hsdp-divide", shard=2, replicate=3, force_sum_reduction=True,
             unit_options={"0": {"gradient_divide_factor": 5.0}}),
        dict(base, name="fp16", param_dtype="fp16", reduce_dtype="fp16"),
        dict(base, name="fp16-6-ranks", param_dtype="fp16", reduce_dtype="fp16", shard=3, replicate=2),
        dict(base, name="fp16-128-ranks", reduce_dtype="fp16", shard=16, replicate=8),
        dict(base, name="one-shard-hsdp", shard=1, replicate=2, param_dtype="bf16"),
        dict(base, name="one-rank-bf16", shard=1, param_dtype="bf16", reduce_dtype="bf16", reshard="true"),
        dict(base, name="one-rank-divide", shard=1, unit_options={"0": {"gradient_divide_factor": 3.0}}),
        dict(base, name="offload", offload=True),
        dict(base, name="shard-dim-1", shard=2,
             shard_dims={"layers.0.up.weight": 1, "layers.1.down.weight": 1, "embed.weight": 1}),
        dict(base, name="shard-dim-1-bf16-accumulate", shard=2, shard_dims={"layers.0.up.weight": 1},
             param_dtype="bf16", micro_batches=2, grad_sync="last"),
        dict(base, name="ignored", ignored=["head.weight", "layers.1.up.weight"]),
        dict(base, name="frozen-some", frozen=["layers.0.up.weight", "layers.2.down.weight"]),
        dict(base, name="frozen-below", frozen=half),
        dict(base, name="frozen-below-reshard-bf16", frozen=half, reshard="true", param_dtype="bf16", micro_batches=2),
        dict(base, name="frozen-unit", frozen=["layers.1.up.weight", "layers.1.down.weight"]),
        dict(titan, name="frozen-below-titan", frozen=half, reshard="true"),
        dict(titan, name="frozen-below-reshard-2", frozen=half, reshard="2"),
        dict(base, name="tied-grouped", tied=True,
             units=[["layers.0"], ["layers.1"], ["layers.2"], ["embed", "head"], [""]], reshard="true"),
        dict(base, name="used-twice", order=[0, 1, 2, 0]),
        dict(base, name="used-twice-reshard", order=[0, 1, 0, 2, 1], reshard="true"),
        dict(base, name="used-twice-keep", order=[0, 1, 2, 1], reshard="false"),
        dict(base, name="used-twice-bf16", order=[0, 1, 0, 2, 0], param_dtype="bf16", micro_batches=2),
        dict(base, name="uneven-128", shard=128, reshard="16"),
    ] + recomputed_configs(base, titan) + loop_configs(base, nested) + own_mesh_configs(base)


def recomputed_configs(base, titan):
    """Units inside checkpointed blocks, and roots without parameters."""
    ups = [[f"layers.{i}.up"] for i in range(3)] + [[""]]
    halves = [[f"layers.{i}.{m}"] for i in range(3) for m in ("up", "down")] + [[""]]

    def each_next(units, count):
        return {str(u): dict(forward_prefetch=[n for n, in units[u + 1:u + 1 + count] if n])
                for u in range(len(units) - 2)}

    def itself(units):
        return {str(u): dict(backward_prefetch=[n]) for u, (n,) in enumerate(units)}

    return [
        dict(base, name="recomputed-forward-prefetch-1", reshard="true", checkpoint=True, units=ups,
             unit_options=each_next(ups, 1)),
        dict(base, name="recomputed-forward-prefetch-2", reshard="true", checkpoint=True, units=halves,
             unit_options=each_next(halves, 2), param_dtype="bf16"),
        dict(base, name="recomputed-no-backward-prefetch", reshard="true", checkpoint=True, units=halves,
             unit_options=itself(halves)),
        dict(base, name="recomputed-backward-prefetch-2", reshard="true", checkpoint=True, units=halves,
             unit_options={str(u): dict(backward_prefetch=[n for n, in halves[max(0, u - 2):u][::-1]])
                           for u in range(1, len(halves))}),
        dict(base, name="recomputed-halves", reshard="true", checkpoint=True, units=halves, micro_batches=2),
        dict(base, name="recomputed-over-2", reshard="2", checkpoint=True, units=halves[:1] + [["layers.0"], [""]]),
        dict(titan, name="empty-root-forward-prefetch",
             unit_options={"5": dict(forward_prefetch=["embed", "layers.0"])}),
        dict(titan, name="empty-root-backward-prefetch",
             unit_options={"5": dict(backward_prefetch=["head", "layers.2"])}),
        dict(titan, name="only-an-empty-root-is-prefetched",
             unit_options={"2": dict(backward_prefetch=[""], forward_prefetch=[""])}),
    ]


def loop_configs(base, nested):
    """What training loops do beside calling the model."""
    titan = dict(base, wrap="titan")
    three = [f"layers.{i}" for i in range(3)]

    def looped(of, name, **loop):
        words = ("unshard_async", "last_backward", "forwards", "chunk_head", "unshard")
        own = {k: loop.pop(k) for k in list(loop) if k not in words + ("loop_reshard",)}
        if "loop_reshard" in loop:
            loop["reshard"] = loop.pop("loop_reshard")
        return dict(of, **own, name=name, loop=loop)

    def parts(name, count=2, of=titan, **loop):
        return looped(of, name, chunk_head=True, loss_chunks=count, **loop)

    shared = dict(base, units=[["embed"], ["layers.0"], ["layers.1"], ["layers.2", "head"], [""]])
    kept_head = {"4": {"reshard": "false"}}
    whole_head = {"4": {"reshard": "false", "reshard_after_backward": False}}
    return [
        looped(base, "async", unshard_async=True),
        looped(base, "async-reshard-bf16", unshard_async=True, reshard="true", param_dtype="bf16"),
        looped(base, "async-forward-prefetch-2", unshard_async=True, reshard="true", forward_prefetch=2, blocks=4),
        looped(base, "async-reshard-2", unshard_async=True, unit_options={"1": {"reshard": "2"}}),
        looped(base, "async-hsdp", unshard_async=True, shard=2, replicate=2, micro_batches=2),
        looped(titan, "async-titan-offload", unshard_async=True, reshard="true", offload=True),
        looped(base, "by-hand", unshard=three),
        looped(base, "by-hand-root-last", unshard=["layers.1", ""], reshard="true"),
        looped(titan, "by-hand-titan-2", unshard=["head", "layers.0"], reshard="true", micro_batches=2),
        looped(base, "by-hand-nested", unshard=["layers.0.down", "layers.1"], blocks=2, units=nested),
        looped(base, "resharded-by-hand", reshard="false", micro_batches=2, loop_reshard=three),
        looped(base, "resharded-by-hand-root", reshard="false", loop_reshard=three + [""]),
        looped(titan, "resharded-by-hand-bf16", reshard="false", param_dtype="bf16", loop_reshard=["embed", "head"]),
        looped(base, "last-backward", last_backward=True, micro_batches=3),
        looped(base, "last-backward-reshard", last_backward=True, micro_batches=3, reshard="true"),
        looped(titan, "last-backward-titan", last_backward=True, micro_batches=3, reshard="true"),
        looped(base, "last-backward-sync-last", last_backward=True, micro_batches=3, grad_sync="last",
               reshard="false", reshard_after_backward=False),
        looped(base, "last-backward-hsdp", last_backward=True, micro_batches=2, shard=2, replicate=2,
               reduce_dtype="bf16"),
        looped(titan, "last-backward-buffers-2", last_backward=True, micro_batches=2, reduce_scatter_buffers=2),
        looped(base, "1f1b", last_backward=True, micro_batches=3, grad_sync="last", unshard=three + [""],
               reshard_after_backward=False, reshard="false"),
        looped(base, "two-forwards", forwards=2, micro_batches=2),
        looped(base, "two-forwards-reshard", forwards=2, micro_batches=2, reshard="true", param_dtype="bf16"),
        looped(titan, "two-forwards-titan", forwards=2, micro_batches=4, reshard="true"),
        looped(base, "two-forwards-reshard-2", forwards=2, micro_batches=2, reshard="2"),
        looped(base, "two-forwards-tied", forwards=2, micro_batches=2, tied=True, reduce_dtype="bf16"),
        looped(base, "three-forwards-keep", forwards=3, micro_batches=3, reshard="false"),
        looped(base, "two-forwards-nested-checkpoint", forwards=2, micro_batches=2, blocks=2, units=nested,
               reshard="true", checkpoint=True),
        looped(base, "two-forwards-checkpoint", forwards=2, micro_batches=2, checkpoint=True, reshard="true"),
        looped(base, "two-forwards-hsdp", forwards=2, micro_batches=2, shard=2, replicate=2),
        parts("parts"),
        parts("parts-5-reshard", 5, reshard="true", micro_batches=2),
        parts("parts-keep", unit_options=kept_head),
        parts("parts-keep-whole", 5, unit_options=whole_head),
        parts("parts-keep-whole-2", unit_options=whole_head, micro_batches=2),
        parts("parts-all-whole", reshard="false", reshard_after_backward=False, micro_batches=2),
        parts("parts-last-backward", 5, last_backward=True, unit_options=whole_head),
        parts("parts-last-backward-reshard", last_backward=True, reshard="true", micro_batches=2),
        parts("parts-last-sync", 5, unit_options={"4": dict(whole_head["4"], grad_sync="last")}),
        parts("parts-bf16", param_dtype="bf16", reshard="true", unit_options={"4": {"grad_sync": "last"}}),
        parts("parts-hsdp", 5, shard=2, replicate=2, last_backward=True),
        parts("parts-shared", unit_options={"3": {"grad_sync": "last"}}, of=shared, reshard="true"),
        parts("parts-shared-5", 5, unit_options={"3": {"grad_sync": "last", "reshard": "false"}}, of=shared,
              micro_batches=2),
        parts("parts-shared-whole", 5, of=shared, unit_options={
            "3": {"grad_sync": "last", "reshard": "false", "reshard_after_backward": False}}),
        parts("parts-shared-toggle", 5, of=shared, loop_reshard=["layers.2"], unit_options={
            "3": {"grad_sync": "last", "reshard": "false", "reshard_after_backward": False}}),
        *unit_dtypes(base),
        parts("parts-root", of=dict(base, units=[["layers.0"], ["layers.1"], ["layers.2"], ["head"], [""]])),
    ]


def unit_dtypes(base):
    """Units with a MixedPrecisionPolicy of their own."""
    fp32, bf16 = dict(param_dtype="fp32"), dict(param_dtype="bf16")
    fp16 = dict(param_dtype="fp16", reduce_dtype="fp16")
    inner = [["layers.0.down"], ["layers.0"], ["layers.1"], ["layers.2"], [""]]

    def case(name, options, of=base, **changes):
        return dict(of, name="dtypes-" + name, unit_options={str(u): o for u, o in options.items()}, **changes)
    return [
        case("fp32-block", {1: fp32}, **bf16),
        case("bf16-block", {1: bf16}, reshard="true"),
        case("fp16-block", {1: fp16}, reshard="true"),
        case("first-and-last", {0: dict(bf16, output_dtype="fp32"), 2: dict(bf16, output_dtype="fp32")}),
        case("no-cast", {0: fp32, 1: dict(fp32, cast_forward_inputs=False)}, **bf16),
        case("fp32-head", {4: fp32}, wrap="titan", **bf16),
        case("fp32-embedding", {0: fp32}, wrap="titan", reshard="true", **bf16),
        case("fp32-root", {3: fp32, 2: dict(output_dtype="fp32")}, **bf16),
        case("inside", {0: dict(fp32, output_dtype="bf16")}, units=inner, reshard="true", **bf16),
        case("grouped", {0: fp32}, blocks=4, group=2, reshard="true", **bf16),
        case("reduce", {0: dict(reduce_dtype="bf16"), 2: fp16 | bf16}, micro_batches=2, grad_sync="last", **bf16),
        case("accumulate-last", {1: fp32}, micro_batches=3, grad_sync="last", **bf16),
        case("accumulate-every", {1: dict(bf16, reduce_dtype="bf16")}, micro_batches=2),
        case("checkpoint", {1: fp32}, checkpoint=True, reshard="true", **bf16),
        case("hsdp", {1: dict(fp32, reduce_dtype="bf16")}, shard=2, replicate=2, micro_batches=2, **bf16),
        case("over-2", {1: dict(fp32, reshard="2")}, reshard="2", **bf16),
        case("one-rank", {1: bf16}, shard=1),
        case("offload", {1: bf16}, offload=True),
        case("frozen-below", {1: fp32}, frozen=["embed.weight", "layers.0.up.weight", "layers.0.down.weight"], **bf16),
        case("two-forwards", {1: fp32}, loop=dict(forwards=2), micro_batches=2, **bf16),
        case("prefetch", {1: bf16, 3: bf16, 4: dict(output_dtype="fp32")}, blocks=5, reshard="true",
             forward_prefetch=2),
    ]


def own_mesh_configs(base):
    """Parameters with another mesh than the unit's other ones: two groups in one unit (and units of another mesh)."""
    def own(name, shard, over, part="down", first=(), last=(), further=True, **changes):
        blocks = changes.get("blocks", base["blocks"])
        units = list(first)
        options = {u: dict(o) for u, o in changes.pop("unit_options", {}).items()}
        for b in range(blocks):
            group = {"shard": over, "group_of": f"layers.{b}"} if further else {"shard": over}
            options.setdefault(str(len(units)), {}).update(group)
            units += [[f"layers.{b}.{part}"], [f"layers.{b}"]]
        return dict(base, **changes, name=name, shard=shard, units=units + list(last) + [[""]], unit_options=options)

    titan = dict(first=[["embed"]], last=[["head"]])
    root = [["embed"]] + [[f"layers.{b}"] for b in range(3)] + [[""]]
    return [
        own("own-8-2", 8, 2),
        own("own-8-2-reshard-bf16", 8, 2, reshard="true", param_dtype="bf16"),
        own("own-4-2-keep", 4, 2, reshard="false"),
        own("own-4-1", 4, 1, reshard="true"),
        own("own-comes-first", 4, 2, part="up", reshard="true"),
        own("own-titan", 8, 4, reshard="true", **titan),
        own("own-unit", 4, 2, further=False, reshard="true", param_dtype="bf16"),
        own("own-accumulate", 4, 2, micro_batches=3, reduce_dtype="bf16"),
        own("own-accumulate-last-bf16", 8, 2, micro_batches=3, grad_sync="last", param_dtype="bf16"),
        own("own-accumulate-rs-only", 4, 2, micro_batches=3, grad_sync="reduce-scatter-only"),
        own("own-checkpoint", 8, 2, reshard="true", checkpoint=True, param_dtype="bf16"),
        own("own-hsdp", 4, 2, replicate=2, param_dtype="bf16"),
        own("own-hsdp-wider", 2, 4, replicate=2, micro_batches=2),
        own("own-hsdp-all", 2, 4, replicate=4, grad_sync="reduce-scatter-only", micro_batches=2),
        own("own-one-shard", 1, 2, replicate=4, reshard="true"),
        own("own-clip", 4, 2, replicate=2, clip=True, micro_batches=2, grad_sync="last"),
        own("own-scatter-buffers-2", 4, 2, blocks=4, reduce_scatter_buffers=2, reshard="true"),
        own("own-force-sum-divide", 4, 2, force_sum_reduction=True,
            unit_options={"1": {"gradient_divide_factor": 7.0}}),
        own("own-divide-fp16", 8, 2, reduce_dtype="fp16", param_dtype="fp16"),
        own("own-prefetch", 4, 2, blocks=4, reshard="true", unit_options={
            "1": {"forward_prefetch": ["layers.1", "layers.2"]}, "3": {"forward_prefetch": ["layers.2"]},
            "5": {"backward_prefetch": ["layers.1", "layers.0"]}}),
        own("own-used-twice", 4, 2, order=[0, 1, 0, 2], reshard="true"),
        own("own-last-backward", 4, 2, micro_batches=2, reshard="true", loop={"last_backward": True}),
        own("own-two-forwards", 4, 2, micro_batches=2, loop={"forwards": 2}),
        own("own-by-hand", 4, 2, loop={"unshard": ["layers.1", "layers.0"], "reshard": ["layers.2"]}, reshard="false"),
        own("own-async", 4, 2, loop={"unshard_async": True}, reshard="true"),
        own("own-offload", 4, 2, offload=True),
        own("own-frozen", 4, 2, frozen=["layers.1.down.weight", "layers.2.up.weight"], reshard="true"),
        own("own-shard-dim-1", 4, 2, shard_dims={"layers.0.down.weight": 1, "layers.2.down.weight": 1}),
        dict(base, name="own-root", units=root, unit_options={"0": {"shard": 2, "group_of": ""}}, reshard="true"),
        dict(base, name="own-some-units", shard=8, reshard="true", units=[
            ["layers.0"], ["layers.1.up"], ["layers.1"], ["layers.2"], [""]],
            unit_options={"1": {"shard": 2, "group_of": "layers.1"}}),
    ]


# Each shows something that differs between releases; docs/fsdp-order.md says what.
RELEASES = ["default", "titan", "one-rank", "one-rank-bf16", "one-shard-hsdp", "accumulate-last",
            "accumulate-last-tied", "narrow-reduce", "narrow-reduce-accumulate", "divide-by-7",
            "divide-by-ranks-hsdp", "divide-by-shards-hsdp", "hsdp-rs-only-bf16", "prefetch-mistargeted",
            "prefetch-all-at-once", "frozen-unit", "frozen-below-reshard-2", "used-twice-reshard",
            "nested-checkpoint", "recomputed-forward-prefetch-2", "recomputed-no-backward-prefetch",
            "recomputed-backward-prefetch-2", "recomputed-halves", "recomputed-over-2"]


def record_release():
    """Of RELEASES, what this PyTorch does in another order than the newest."""
    newest = {c["config"]["name"]: c["events"] for c in json.loads(GOLDEN.read_text())["cases"]}
    cases = [record(c) for c in configs() if c["name"] in RELEASES]
    result = {"_about": "fsdp2_order.json of an older PyTorch: the cases whose events differ from the newest's.",
              "torch": torch.__version__.split("+")[0],
              "cases": [c for c in cases if json.loads(json.dumps(c["events"])) != newest[c["config"]["name"]]]}
    path = GOLDEN.with_name("fsdp2_order_{}.{}.json".format(*release.RUNS))
    return golden_file.finish(path, golden_file.text_of(result))


def recorded(cases):
    """Those that clip come first: functional collectives find no groups once a default group has been destroyed."""
    found = {c["name"]: record(c) for c in sorted(cases, key=lambda c: not c.get("clip"))}
    return [found[c["name"]] for c in cases]


def main():
    if release.RUNS < release.NEWEST:
        return record_release()
    result = {"_about": "What PyTorch's fully_shard issues on rank 0 in a steady step of the toy model: [what, unit, "
                        "elements, dtype, "
                        "communicator, ranks, reduction]. Elements: all_gather output, reduce_scatter input, "
                        "all_reduce tensor. "
                        "Recorded by tests/torch/record_fsdp2.py.",
              "torch": torch.__version__.split("+")[0], "cases": recorded(configs())}
    text = golden_file.text_of(result)
    return golden_file.finish(GOLDEN, text)


if __name__ == "__main__":
    sys.exit(main())
