"""What PyTorch's fully_shard issues, in host order, while one step runs.

Each event is [what, unit, elements, ...]:

    all_gather, dtype, communicator, ranks                 elements of the output
    copy_out                                               of a unit's gathered parameters
    reduce_scatter, dtype, communicator, ranks, reduction  elements of the input
    all_reduce, dtype, communicator, ranks, reduction
    clip_reduce, "", communicator, ranks                   of norms of gradients, of no unit (-1)
    divide, dtype, factor
    free, free_gather, free_input                          unsharded parameters, gather buffers, reduce-scatter inputs
    cast, cast_gradient, dtype                             what a unit's hook casts to, and its gradient; of no unit
    retained, dtype                                        an unsharded gradient that a micro-batch leaves behind
"""
import weakref

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_module
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives_module
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_module
from torch.distributed.fsdp._fully_shard import _fsdp_state as state_module

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {v: k for k, v in DTYPES.items()}


def reduction(op):
    """The name of a reduce op."""
    if op == dist.ReduceOp.AVG:
        return "average"
    return "sum" if op == dist.ReduceOp.SUM else "scaled_sum"


def param_groups(state):
    """A state's groups of parameters; before PyTorch 2.12 it has one at most."""
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    return [state._fsdp_param_group] if state._fsdp_param_group else []


def by_names(params):
    """As named_parameters() has them: those of a module before those of its children, which FSDP takes first."""
    ordered, owner = [], lambda p: p._param_fqn.rpartition(".")[0] + "."
    for p in params:
        below = (i for i, other in enumerate(ordered) if owner(other) != owner(p) and owner(other).startswith(owner(p)))
        ordered.insert(next(below, len(ordered)), p)
    return ordered


class OrderLog:
    """Patches what FSDP calls for as long as it is entered. groups: {id(FSDPParamGroup): unit}; shard: ranks; own: the
    mesh of units with one of their own, and these units; casts: logs those of hooks, too."""

    def __init__(self, groups, shard, own=(None, ()), casts=False):
        self.groups, self.shard, self.casts = groups, shard, casts
        self.events, self.unit, self.logging = [], None, True
        self.own_mesh, self.own_units = own

    def retained(self, firsts):
        """Notes the gradients that the micro-batch before leaves unsharded. firsts: the first module of each unit."""
        of_unit = {self.groups[id(g)]: g for m in firsts if m is not None for g in param_groups(fully_shard.state(m))}
        for u, param_group in sorted(of_unit.items()):
            for p in by_names(param_group.fsdp_params):
                grad = p._unsharded_param.grad if hasattr(p, "_unsharded_param") else None
                if grad is None:             # before PyTorch 2.15 gradients that wait in the reduce dtype lie there
                    grad = getattr(p, "unsharded_accumulated_grad", None)
                if grad is not None:
                    self.events.append(["retained", u, grad.numel(), NAMES[grad.dtype]])

    def inside(self, name, original):
        def call(group, *args, **kwargs):
            before, self.unit = self.unit, self.groups[id(group)]
            if name.startswith("_to_sharded") and group._sharded_state.name == "UNSHARDED":
                self.events.append(["free", self.unit, 0, ""])
            if name == "_to_unsharded" and group._sharded_state.name != "UNSHARDED":
                self.events.append(["copy_out", self.unit, 0, ""])
            try:
                return original(group, *args, **kwargs)
            finally:
                self.unit = before
        return call

    def communicator(self, what, process_group):
        if self.unit in self.own_units:
            return "own_replicate" if what == "all_reduce" else "own_shard"
        if what == "all_reduce":
            return "replicate"
        if process_group.group_desc == "fsdp_reduce_scatter":
            return "shard_reduce"
        return "shard" if process_group.size() == self.shard else "reshard"

    def collective(self, what, keyword, position, original):
        def call(*args, **kwargs):
            tensor = kwargs.get(keyword, kwargs.get("input" if what == "reduce_scatter" else "output"))
            tensor = args[position] if tensor is None else tensor
            event = [what, self.unit, tensor.numel(), NAMES[tensor.dtype], self.communicator(what, kwargs["group"]),
                     kwargs["group"].size()]
            self.events.append(event if what == "all_gather" else event + [reduction(kwargs["op"])])
            if what == "reduce_scatter" and reduction(kwargs["op"]) == "scaled_sum":
                kwargs["op"] = dist.ReduceOp.SUM     # the fake group knows no scaled sum
            return original(*args, **kwargs)
        return call

    def when_freed(self, what, tensor):
        unit, elements = self.unit, tensor.numel()
        weakref.finalize(tensor, lambda: self.logging and self.events.append([what, unit, elements, ""]))

    def patches(self):
        """(holder, name, make a replacement of the original)."""
        group = group_module.FSDPParamGroup
        for name in ("unshard", "_to_sharded", "_to_sharded_post_forward", "_to_unsharded", "post_backward",
                     "wait_for_unshard"):
            yield group, name, lambda original, name=name: self.inside(name, original)
        # Renamed in PyTorch 2.15.
        for names, arguments in [(("all_gather_single", "all_gather_into_tensor"), ("all_gather", "output_tensor", 0)),
                                 (("reduce_scatter_single", "reduce_scatter_tensor"),
                                  ("reduce_scatter", "input_tensor", 1)),
                                 (("all_reduce",), ("all_reduce", "tensor", 0))]:
            name = next(n for n in names if hasattr(dist, n))
            yield dist, name, lambda original, arguments=arguments: self.collective(*arguments, original)

        def gathered(original):
            def call(*args, **kwargs):
                result = original(*args, **kwargs)
                self.when_freed("free_gather", result.all_gather_output)
                return result
            return call

        def reduced(original):
            def call(*args):
                self.when_freed("free_input", args[0])
                return original(*args)
            return call

        def summed(original):
            def call(tensor, *args, **kwargs):
                mesh, dim = kwargs["group"]
                what = "own_shard" if mesh == self.own_mesh else "shard"
                self.events.append(["clip_reduce", -1, 0, "", what, mesh.size(dim)])
                return original(tensor, *args, **kwargs)
            return call
        yield functional_module, "all_reduce", summed

        def divided(original):
            def call(tensor, factor):
                if factor is not None and factor != 1:
                    self.events.append(["divide", self.unit, tensor.numel(), NAMES[tensor.dtype], factor])
                return original(tensor, factor)
            return call

        def cast(original):
            def call(dtype, tensor):
                result = original(dtype, tensor)
                if result is tensor:
                    return result
                self.events.append(["cast", -1, tensor.numel(), NAMES[dtype]])
                back = ["cast_gradient", -1, tensor.numel(), NAMES[tensor.dtype]]
                if result.grad_fn is not None:
                    result.grad_fn.register_hook(lambda *_: self.logging and self.events.append(back))
                return result
            return call
        if self.casts:
            yield state_module, "_cast_fp_tensor", cast
        yield group_module, "foreach_all_gather", gathered
        yield group_module, "ReduceScatterState", reduced
        yield collectives_module, "_div_if_needed", divided

    def __enter__(self):
        self.originals = []
        for holder, name, make in self.patches():
            original = getattr(holder, name)
            self.originals.append((holder, name, original))
            setattr(holder, name, make(original))
        return self

    def __exit__(self, *_):
        self.logging = False
        for holder, name, original in reversed(self.originals):
            setattr(holder, name, original)
