"""The fsdp2 dialect: fully_shard, unit by unit, and every switch that a plan sets."""
from fsdp_plan.needs_torch import DTYPES, VERSION, torch
from fsdp_plan.errors import PlanError
from fsdp_plan.modules import by_name, parameters_by_name
from fsdp_plan.parameters import matching
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed import fsdp
from torch.distributed.tensor import Shard


def shard(model, plan, mesh):
    """Shards in place; returns the model."""
    modules = by_name(model)
    arguments = further_arguments(model, plan)
    for unit in plan.units:
        of_unit = [modules[name] for name in unit.modules]
        fully_shard(of_unit if len(of_unit) > 1 else of_unit[0], mesh=mesh,
                    mp_policy=policy_of(unit, plan), reshard_after_forward=reshard_argument(unit), **arguments)
    for unit, forward, backward in prefetch_lists(plan):
        first = modules[unit.first]
        if forward is not None:
            first.set_modules_to_forward_prefetch([modules[u.first] for u in forward])
        if backward is not None:
            first.set_modules_to_backward_prefetch([modules[u.first] for u in backward])
    for name, method, value in switches(plan):
        getattr(modules[name], method)(value)
    if plan["share_comm_context"]:
        share_streams(model, [modules[root.first] for root in plan.roots])
    if plan["force_sum_reduction"]:
        force_sum(model)
    if mesh.device_type == "cpu" and torch.distributed.get_backend(mesh.get_group(mesh.ndim - 1)) == "gloo":
        force_sum(model)                     # gloo has no averaging reduce-scatter: sum, then divide
    return model


def share_streams(model, roots):
    """All roots begin before the first of them runs: a later one's first forward would empty what they share."""
    fsdp.share_comm_ctx(roots)

    def begin(*_):
        for root in roots:
            root._get_fsdp_state()._lazy_init()     # once
    model.register_forward_pre_hook(begin)


def policy_of(unit, plan):
    compute, reduce = unit.dtypes(plan)
    returns = {"output_dtype": DTYPES[unit.output_dtype]} if unit.output_dtype else {}
    return MixedPrecisionPolicy(param_dtype=DTYPES[compute], reduce_dtype=DTYPES[reduce],
                                cast_forward_inputs=unit.cast_forward_inputs, **returns)


def reshard_argument(unit):
    """None is PyTorch's "yes, but no for the root"; before 2.8 that was what True meant."""
    if unit.reshard_after_forward == "auto":
        return None if VERSION >= (2, 8) else True
    return unit.reshard_after_forward


def further_arguments(model, plan):
    arguments = {}
    if plan["offload"]:
        arguments["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    if plan["ignored"]:
        arguments["ignored_params"] = set(matching(model, plan["ignored"]))
    if plan["shard_dims"]:
        named = parameters_by_name(model)
        dims = {named[d["parameter"]]: d["dim"] for d in plan["shard_dims"]}
        arguments["shard_placement_fn"] = lambda p: Shard(dims[p]) if p in dims else None
    return arguments


def prefetch_lists(plan):
    """[(unit, units to prefetch in its forward, in its backward)]; None: PyTorch's own. A unit's lists come before the
    plan's counts: the next units in the order in which they begin, those before in the order in which they end."""
    forward, backward = plan["forward_prefetch"], plan["backward_prefetch"]
    begins, ends, lists = plan.begins(), plan.ends(), {u.index: [u, None, None] for u in plan.units}
    firsts = {u.first: u for u in plan.units}
    for i, unit in enumerate(begins):
        if forward and begins[i + 1:i + 1 + forward]:
            lists[unit.index][1] = begins[i + 1:i + 1 + forward]
    for i, unit in enumerate(ends):
        if backward == 0:                    # itself is there already: nothing is prefetched, not even the default
            lists[unit.index][2] = [unit]
        elif backward > 1 and i > 0:
            lists[unit.index][2] = ends[max(0, i - backward):i][::-1]
    for unit in plan.units:
        if unit.forward_prefetch:
            lists[unit.index][1] = [firsts[name] for name in unit.forward_prefetch]
        if unit.backward_prefetch:
            lists[unit.index][2] = [firsts[name] for name in unit.backward_prefetch]
    return [tuple(each) for each in lists.values()]


def switches(plan):
    """[(module, the method of FSDPModule, its argument)] of fully_shard's later switches that the plan turns."""
    for unit in plan.units:
        if unit.gradient_divide_factor is not None:
            yield unit.first, "set_gradient_divide_factor", unit.gradient_divide_factor
        if not unit.unshard_in_backward:
            yield unit.first, "set_unshard_in_backward", False
    if plan["reduce_scatter_buffers"] > 1:
        for root in plan.roots:
            yield root.first, "set_reduce_scatter_max_input_buffers", plan["reduce_scatter_buffers"]
    if plan["separate_reduce_scatter"]:
        yield "", "set_separate_reduce_scatter_group", True


def refuse_missing(plan):
    """Raises PlanError where the PyTorch that is installed has not all of the plan's switches."""
    wanted = [(FSDPModule, name) for _, name, _ in switches(plan)]
    for where, name in wanted + [(fsdp, "share_comm_ctx")] * plan["share_comm_context"]:
        if not hasattr(where, name):
            raise PlanError(f"the plan needs {name}, which PyTorch {torch.__version__} does not have: plan for this "
                            "release (--dialect fsdp2@VERSION), or use a newer one")


def force_sum(model):
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)
