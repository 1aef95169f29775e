#!/usr/bin/env python3
"""Records what PyTorch's fully_shard really issues for the toy model of tests/toy_model.h.

One process with the fake process group plays rank 0 of W (or of R x W) ranks; collectives and the frees of unsharded
parameters are logged in host order with element counts and dtypes. Usage:

    python3 tests/torch/record_fsdp2.py            compares with tests/torch/golden/fsdp2_order.json, prints what changed
    python3 tests/torch/record_fsdp2.py --write    records it again
"""
import json
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_module
from torch.testing._internal.distributed.fake_pg import FakeStore

GOLDEN = pathlib.Path(__file__).parent / "golden" / "fsdp2_order.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {v: k for k, v in DTYPES.items()}


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.act = nn.GELU()
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Toy(nn.Module):
    def __init__(self, blocks, vocab, width, hidden, tied):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width, hidden) for _ in range(blocks))
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


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


def record(config):
    torch.manual_seed(0)
    model = Toy(config["blocks"], config["vocab"], config["width"], config["hidden"], config.get("tied", False))
    log, state = [], {"unit": None}
    shard, replicate = config["shard"], config.get("replicate", 1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=shard * replicate)
    mesh = (init_device_mesh("cpu", (replicate, shard), mesh_dim_names=("replicate", "shard")) if replicate > 1
            else init_device_mesh("cpu", (shard,), mesh_dim_names=("shard",)))
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[config["param_dtype"]], reduce_dtype=DTYPES[config["reduce_dtype"]])
    units = units_of(config)
    reshard = {"auto": None, "true": True, "false": False}[config["reshard"]]
    if config.get("checkpoint"):
        for i in range(config["blocks"]):
            model.layers[i] = checkpoint_wrapper(model.layers[i])
    groups = {}
    for u, names in enumerate(units):
        modules = [model.get_submodule(n) for n in names]
        fully_shard(modules[0] if len(modules) == 1 else modules, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        param_group = fully_shard.state(modules[0])._fsdp_param_group
        if param_group is not None:
            groups[id(param_group)] = u
    for i, layer in enumerate(model.layers if config["wrap"] == "block" and config.get("group", 1) == 1 else []):
        if config.get("forward_prefetch"):
            layer.set_modules_to_forward_prefetch(list(model.layers)[i + 1:i + 1 + config["forward_prefetch"]])
        if config.get("backward_prefetch", 1) > 1:
            layer.set_modules_to_backward_prefetch(list(reversed(list(model.layers)[max(0, i - config["backward_prefetch"]):i])))

    group = group_module.FSDPParamGroup
    originals = {n: getattr(group, n) for n in ("unshard", "_to_sharded", "post_backward")}

    def inside(name):
        def call(self, *args, **kwargs):
            before, state["unit"] = state["unit"], groups[id(self)]
            if name == "_to_sharded" and self._sharded_state.name == "UNSHARDED":
                log.append(["free", state["unit"], 0, ""])
            try:
                return originals[name](self, *args, **kwargs)
            finally:
                state["unit"] = before
        return call

    # Renamed in PyTorch 2.15.
    names = [("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor"), ("all_reduce",)]
    names = [next(n for n in options if hasattr(dist, n)) for options in names]
    collectives = dict(zip(names, [("all_gather", "output_tensor", 0), ("reduce_scatter", "input_tensor", 1), ("all_reduce", "tensor", 0)]))
    plain = {n: getattr(dist, n) for n in collectives}

    def logged(name):
        what, keyword, position = collectives[name]

        def call(*args, **kwargs):
            tensor = kwargs.get(keyword, kwargs.get("input" if what == "reduce_scatter" else "output"))
            tensor = args[position] if tensor is None else tensor
            log.append([what, state["unit"], tensor.numel(), NAMES[tensor.dtype]])
            return plain[name](*args, **kwargs)
        return call

    for n in originals:
        setattr(group, n, inside(n))
    for n in collectives:
        setattr(dist, n, logged(n))
    try:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for step in range(2):                # the second is the steady one
            log.clear()
            optimizer.zero_grad()
            count = config["micro_batches"]
            for m in range(count):
                last = m + 1 == count
                if config.get("grad_sync", "every") == "last":
                    model.set_requires_gradient_sync(last)
                elif config.get("grad_sync") == "reduce-scatter-only":
                    model.set_requires_all_reduce(last)
                ids = torch.randint(0, config["vocab"], (2, 5))
                out = model(ids)
                nn.functional.cross_entropy(out.flatten(0, 1).float(), ids.flatten()).backward()
            optimizer.step()
    finally:
        for n, f in originals.items():
            setattr(group, n, f)
        for n, f in plain.items():
            setattr(dist, n, f)
        dist.destroy_process_group()
    local = {n.replace("_checkpoint_wrapped_module.", ""): list(p.to_local().shape) for n, p in model.named_parameters()}
    return {"config": config, "units": units, "events": list(log), "local_shapes": local}


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
        dict(base, name="unit-as-long-as-the-root-reshard", blocks=2, units=[["layers.1"], ["embed", "head"], [""]], reshard="true"),
        dict(base, name="nested", blocks=2, units=nested),
        dict(base, name="nested-reshard", blocks=2, units=nested, reshard="true", param_dtype="bf16"),
        dict(base, name="nested-keep", blocks=2, units=nested, reshard="false"),
        dict(base, name="nested-checkpoint", blocks=2, units=nested, reshard="true", checkpoint=True),
    ]


def main():
    result = {"_about": "Collectives and frees that PyTorch's fully_shard issues on rank 0 in a steady step of the toy model: "
                        "[what, unit, elements, dtype]. Elements: all_gather output, reduce_scatter input, all_reduce tensor. "
                        "Recorded by tests/torch/record_fsdp2.py.",
              "torch": torch.__version__.split("+")[0], "cases": [record(c) for c in configs()]}
    text = "{\n" + ",\n".join(f' {json.dumps(k)}: ' + ("[\n" + ",\n".join("  " + json.dumps(c) for c in v) + "\n ]" if k == "cases" else json.dumps(v))
                              for k, v in result.items()) + "\n}\n"
    if "--write" in sys.argv:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
        return 0
    before = json.loads(GOLDEN.read_text())
    changed = [c["config"]["name"] for c, d in zip(json.loads(text)["cases"], before["cases"]) if c != d]
    print("changed: " + ", ".join(changed) if changed else f"all {len(before['cases'])} cases reproduced")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
