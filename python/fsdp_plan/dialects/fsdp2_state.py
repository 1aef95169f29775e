"""What PyTorch's fully_shard holds of a model, and what it should hold under a plan, in the same form:

    {unit: {what: value}}     unit: the names of its modules
"""
from fsdp_plan.dialects import fsdp2, tensor
from fsdp_plan.needs_torch import NAMES
from fsdp_plan.errors import PlanError
from fsdp_plan.modules import by_name, innermost
from fsdp_plan.plan import is_outermost
from fsdp_plan.steps import is_last, switches_of
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule


def states_of(model):
    """{names of modules: its FSDPState}, in the order of the model."""
    held, states = {}, {}
    for name, module in by_name(model).items():
        state = module._get_fsdp_state() if isinstance(module, FSDPModule) else None
        if state is not None:
            states[id(state)] = state
            held.setdefault(id(state), []).append(name)
    return {tuple(sorted(names)): states[i] for i, names in held.items()}


def group_of(state):
    return getattr(state, "_fsdp_param_group", None)


def parameter_names(model):
    """{FSDPParam: plain name} of all units."""
    names = {}
    for name, module in by_name(model).items():
        for m in {module, innermost(module)}:
            names[id(m)] = name
    return {p: f"{names[id(p._module_info.module)]}.{p._module_info.param_name}".strip(".")
            for state in states_of(model).values() for p in params_of(state)}


def tensor_group(model):
    """That of the ranks over which layers are split."""
    for group in filter(None, map(group_of, states_of(model).values())):
        for p in group.fsdp_params:
            if beyond(group, p):
                mesh = p.sharded_param.device_mesh
                return mesh.get_group(mesh.ndim - 1)
    raise PlanError("the plan has tensor ranks, and the model's layers are not split over any: apply() splits them")


def beyond(group, p):
    """(ranks, split dimension or None) of each of the mesh's dimensions behind fully_shard's, whatever their names."""
    mesh, own = p.sharded_param.device_mesh, group.mesh_info.mesh.ndim
    dims = [getattr(placement, "dim", None) for placement in p.sharded_param.placements]
    return list(zip(mesh.shape[own:], dims[own:]))


def params_of(state):
    return group_of(state).fsdp_params if group_of(state) else []


def observed(model, micro_batch=None):
    """What PyTorch holds. micro_batch: also the switches that differ from one micro-batch to the next."""
    states, names = states_of(model), parameter_names(model)
    firsts = {id(state): modules for modules, state in states.items()}
    held = [name for modules in states for name in modules]
    roots = [state for modules, state in states.items() if is_outermost(modules[0], held)]
    return {modules: of_state(state, names, firsts, micro_batch, roots) for modules, state in states.items()}


def of_state(state, names, firsts, micro_batch, roots):
    group = group_of(state)
    if group is None:
        return {"parameters": []}
    mesh, after = group.mesh_info, group.post_forward_mesh_info
    policies = {dtypes_of(p) for p in group.fsdp_params}
    found = {
        "parameters": sorted(names[p] for p in group.fsdp_params),
        "ranks (replicate, shard)": (getattr(mesh, "replicate_mesh_size", 1), mesh.shard_mesh_size),
        "ranks after forward": 1 if after is None or becomes_root(state, roots) else after.shard_mesh_size,
        "dtypes of parameters, reduction": sorted((text(a), text(b)) for a, b in policies),
        "casts (of inputs, to what it returns)": casts_of(state),
        "offload": isinstance(group.offload_policy, CPUOffloadPolicy),
        "sharded dimension": {names[p]: p.fsdp_placement.dim for p in group.fsdp_params if p.fsdp_placement.dim},
        "forward prefetch": [firsts[id(s)] for s in state._states_to_forward_prefetch],
        "backward prefetch": [firsts[id(s)] for s in state._states_to_backward_prefetch],
        "gradient divide factor": getattr(group, "gradient_divide_factor", None),
        "unshard in backward": getattr(group, "unshard_in_backward", True),
        "reduce-scatter buffers": getattr(group, "reduce_scatter_max_input_buffers", 1),
        "reduce-scatter group of its own": getattr(mesh, "reduce_scatter_process_group", None) is not None,
        "sums are forced": getattr(group, "force_sum_reduction_for_comms", False),
    }
    found.update(tensor_ranks(group, names))
    if state in roots:
        found["streams are those of the first root"] = state._comm_ctx is roots[0]._comm_ctx
    if micro_batch is not None:
        found["reduces gradients"] = group.reduce_grads
        found["all-reduces gradients"] = group.all_reduce_grads
        found["reshards after backward"] = group.reshard_after_backward
    return found


def tensor_ranks(group, names):
    """How many, and the dimension of each parameter that is split over them; None: each holds all of it."""
    split = {names[p]: tuple(x for pair in beyond(group, p) for x in pair) for p in group.fsdp_params}
    return {"split over tensor ranks": {name: how for name, how in split.items() if how}}


def dtypes_of(p):
    """Of a parameter, as it is gathered and as its gradient is reduced: a policy that says nothing leaves the types."""
    gathered = p.mp_policy.param_dtype or p.sharded_param.dtype
    return gathered, p.mp_policy.reduce_dtype or gathered


def casts_of(state):
    """A policy that returns what it computes casts nothing."""
    policy = state._mp_policy
    returns = policy.output_dtype not in (None, policy.param_dtype)
    return policy.cast_forward_inputs, text(policy.output_dtype) if returns else None


def becomes_root(state, roots):
    """PyTorch decides at the first forward that a root keeps its parameters, unless it was told otherwise."""
    return state in roots and state._is_root is None and getattr(state, "_auto_reshard_after_forward", True)


def text(dtype):
    return NAMES.get(dtype, str(dtype))


def planned(model, plan, sums_forced, micro_batch=None):
    """What PyTorch should hold of the model. sums_forced: gloo needs them, whatever the plan says."""
    prefetch = {u.index: (forward, backward) for u, forward, backward in fsdp2.prefetch_lists(plan)}
    last = micro_batch is not None and is_last(plan, micro_batch)
    dims = {d["parameter"]: d["dim"] for d in plan["shard_dims"] if d["dim"]}
    wanted, split = {}, tensor.placements(model, plan)
    for unit in plan.units:
        wanted[key(unit)] = {"parameters": []}
        if not unit.parameters:
            continue
        forward, backward = ([key(u) for u in units or []] for units in prefetch[unit.index])
        wanted[key(unit)] = {
            "parameters": sorted(unit.parameters),
            "ranks (replicate, shard)": (plan.replicate, plan.shard),
            "ranks after forward": ranks_after_forward(unit, plan),
            "dtypes of parameters, reduction": [unit.dtypes(plan)],
            "casts (of inputs, to what it returns)": casts_in_plan(unit, plan),
            "offload": plan["offload"],
            "sharded dimension": {name: dims[name] for name in unit.parameters if name in dims},
            "forward prefetch": forward,
            "backward prefetch": backward,
            "gradient divide factor": unit.gradient_divide_factor,
            "unshard in backward": unit.unshard_in_backward,
            "reduce-scatter buffers": plan["reduce_scatter_buffers"],
            "reduce-scatter group of its own": plan["separate_reduce_scatter"],
            "sums are forced": plan["force_sum_reduction"] or sums_forced,
            "split over tensor ranks": {name: (plan.tensor, split[name]) for name in unit.parameters if name in split},
        }
        if unit in plan.roots:
            wanted[key(unit)]["streams are those of the first root"] = True
        if micro_batch is not None:
            reduces, all_reduces, reshards = switches_of(plan, unit, last)
            wanted[key(unit)].update({"reduces gradients": reduces, "all-reduces gradients": reduces and all_reduces,
                                      "reshards after backward": reshards})
    return wanted


def casts_in_plan(unit, plan):
    returns = unit.output_dtype not in (None, unit.dtypes(plan)[0])
    return unit.cast_forward_inputs, unit.output_dtype if returns else None


def key(unit):
    return tuple(sorted(unit.modules))


def ranks_after_forward(unit, plan):
    how = unit.reshard_after_forward
    if how == "auto":
        how = unit not in plan.roots
    if how is True:
        return plan.shard
    return 1 if how is False else how
