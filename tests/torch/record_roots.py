#!/usr/bin/env python3
"""Records what PyTorch's fully_shard issues where a model has two roots: no unit holds the model itself, and two halves
that run one after the other are each wrapped with their blocks inside. Each half has a communication context of its own
(PyTorch's default), or both share one (share_comm_ctx).

The log is that of order_log.py, with two events more: root_forward and final_callback, of the unit of a root. Usage:

    python3 tests/torch/record_roots.py            compares with tests/torch/golden/roots_order.json
    python3 tests/torch/record_roots.py --write    records it again
"""
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, share_comm_ctx
from torch.distributed.fsdp._fully_shard import _fsdp_state as state_module
from torch.testing._internal.distributed.fake_pg import FakeStore

import golden_file
from order_log import OrderLog, param_groups
from record_fsdp2 import loss_of, policy_of, reshard_value
from toy import Block

GOLDEN = pathlib.Path(__file__).parent / "golden" / "roots_order.json"


def blocks_of(config, half):
    return config["blocks"] if half == 0 or not config.get("head_alone") else 0


class Half(nn.Module):
    """Blocks, after an embedding or before an output layer."""

    def __init__(self, config, first):
        super().__init__()
        vocab, width = config["vocab"], config["width"]
        self.embed = nn.Embedding(vocab, width) if first else nn.Identity()
        self.layers = nn.ModuleList(Block(width, config["hidden"]) for _ in range(blocks_of(config, not first)))
        self.head = nn.Identity() if first else nn.Linear(width, vocab, bias=False)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class RootLog(OrderLog):
    """An OrderLog that also notes when a root begins a forward, and when its final callback runs.
    roots: {id(FSDPState): unit}."""

    def __init__(self, groups, shard, roots):
        super().__init__(groups, shard)
        self.roots = roots

    def patches(self):
        yield from super().patches()

        def begun(original):
            def call(state, *args):
                idle = state._state_ctx.iter_forward_root is None
                result = original(state, *args)
                if idle:
                    self.events.append(["root_forward", self.roots[id(state)], 0, ""])
                return result
            return call

        def ended(original):
            def call(state):
                root = state._state_ctx.all_states[0]   # the callback is of the first state with a backward
                self.events.append(["final_callback", self.roots[id(root)], 0, ""])
                return original(state)
            return call
        yield state_module.FSDPState, "_root_pre_forward", begun
        yield state_module.FSDPState, "_root_post_backward_final_callback", ended


def units_of(config):
    """Names of modules, inner before outer; the root of each half is its last unit."""
    units = []
    for half in range(2):
        blocks = [[f"{half}.layers.{i}"] for i in range(blocks_of(config, half))]
        if config["wrap"] == "titan":        # then the roots hold no parameters
            blocks = [["0.embed"]] + blocks if half == 0 else blocks + [["1.head"]]
        units += blocks + [[str(half)]]
    return units


def initialize(model):
    for half in model:
        fully_shard.state(half)._lazy_init()


def wrap(model, config, mesh):
    """fully_shard on every unit. Returns the unit of each group of parameters and of each root, and the modules."""
    units, groups, roots, modules = units_of(config), {}, {}, []
    for u, (name,) in enumerate(units):
        module = model.get_submodule(name)
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard_value(config["reshard"]),
                    mp_policy=policy_of(config, {}))
        state = fully_shard.state(module)
        groups.update({id(g): u for g in param_groups(state)})
        if "." not in name:
            roots[id(state)] = u
        modules.append(module)
    if config.get("initialized") == "before":  # as PyTorch's own test does, whose roots hold no units
        initialize(model)
    if config["share_comm_context"]:         # the units inside of a root get its context with its initialization
        share_comm_ctx([model[0], model[1]])
    if config.get("initialized") == "after":  # else each root's first forward does it
        initialize(model)
    return groups, roots, modules


def contexts_of(modules):
    """By unit, which communication context it has after a step: the number of the first unit with the same."""
    contexts = [id(fully_shard.state(m)._comm_ctx) for m in modules]
    return [contexts.index(c) for c in contexts]


def left_in(modules):
    """What each context still holds: [its first unit, groups in its order, inputs, reductions not waited for]."""
    contexts = [fully_shard.state(m)._comm_ctx for m in modules]
    return [[u, len(contexts[u].post_forward_order), len(contexts[u].reduce_scatter_states),
             len(contexts[u]._last_post_reduce_events)] for u in sorted(set(contexts_of(modules)))]


def differences(first, steady):
    """What only the first step has, and only the steady one, each with its place."""
    def alone(a, b):
        return [[i, *e] for i, e in enumerate(a) if i >= len(b) or b[i] != e]
    return [alone(first, steady), alone(steady, first)]


def record(config):
    torch.manual_seed(0)
    model = nn.Sequential(Half(config, True), Half(config, False))
    if config.get("checkpoint"):
        for half in model:
            for i, layer in enumerate(half.layers):
                half.layers[i] = checkpoint_wrapper(layer)
    shard, replicate = config["shard"], config.get("replicate", 1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=shard * replicate)
    try:
        mesh = (init_device_mesh("cpu", (replicate, shard), mesh_dim_names=("replicate", "shard")) if replicate > 1
                else init_device_mesh("cpu", (shard,), mesh_dim_names=("shard",)))
        groups, roots, modules = wrap(model, config, mesh)
        steps = []
        with RootLog(groups, shard, roots) as log:
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            for _ in range(3):               # the first initializes; the second is the steady one, as the third shows
                log.events.clear()
                optimizer.zero_grad()
                for m in range(config["micro_batches"]):
                    last = m + 1 == config["micro_batches"]
                    for half in model:
                        half.set_requires_gradient_sync(last or config.get("grad_sync", "every") != "last")
                    ids = torch.randint(0, config["vocab"], (2, 5))
                    loss_of(model(ids), ids).backward()
                    log.retained(modules)
                optimizer.step()
                steps.append(list(log.events))
    finally:
        dist.destroy_process_group()
    if steps[1] != steps[2]:
        raise RuntimeError(f"{config['name']}: the third step is not the second")
    return {"config": config, "units": units_of(config), "contexts": contexts_of(modules),
            "left": left_in(modules), "first_step": differences(steps[0], steps[1]), "events": steps[1]}


def configs():
    base = {"blocks": 2, "vocab": 11, "width": 8, "hidden": 24, "shard": 4, "wrap": "block", "reshard": "auto",
            "param_dtype": "fp32", "reduce_dtype": "fp32", "micro_batches": 1}
    # With a shared context and fewer units in the second root, PyTorch's first backward fails (IndexError in
    # _backward_prefetch) unless both roots were initialized before the first forward.
    head = {"head_alone": True, "initialized": "after"}
    kinds = {"": {}, "-titan": {"wrap": "titan"}, "-reshard": {"reshard": "true"},
             "-head": dict(head), "-head-accumulate": dict(head, micro_batches=2),
             "-head-hsdp": dict(head, shard=2, replicate=2, param_dtype="bf16", reshard="true"),
             "-initialized": {"wrap": "titan", "initialized": "after"},
             "-checkpoint": {"wrap": "titan", "checkpoint": True, "param_dtype": "bf16"},
             "-accumulate-last": {"wrap": "titan", "micro_batches": 2, "grad_sync": "last"},
             "-hsdp": {"wrap": "titan", "shard": 2, "replicate": 2, "param_dtype": "bf16"}}
    late = {"-late": {"initialized": "before"}, "-late-head": {"initialized": "before", "head_alone": True},
            "-late-titan": {"initialized": "before", "wrap": "titan"}}
    return [dict(base, **changes, name=how + kind, share_comm_context=how == "shared")
            for how in ("separate", "shared")
            for kind, changes in {**kinds, **(late if how == "shared" else {})}.items()]


def main():
    result = {"_about": "What PyTorch's fully_shard issues on rank 0 in a steady step with two roots. Events as "
                        "in fsdp2_order.json; root_forward and final_callback of a root. contexts: by unit, the first "
                        "unit with the same communication context. left: of each context after three steps, its first "
                        "unit, and the groups in its post-forward order, reduce-scatter inputs and reductions not "
                        "waited for that it holds. first_step: where the first step differs, its events and the "
                        "steady ones, by place. Recorded by tests/torch/record_roots.py.",
              "torch": torch.__version__.split("+")[0], "cases": [record(c) for c in configs()]}
    return golden_file.finish(GOLDEN, golden_file.text_of(result))


if __name__ == "__main__":
    sys.exit(main())
