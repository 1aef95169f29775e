"""The fsdp1 dialect: FullyShardedDataParallel around each unit."""
import dataclasses

from fsdp_plan.needs_torch import DTYPES, torch
from fsdp_plan.modules import by_name, plain, replace
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel


def shard(model, plan, mesh):
    """Wraps every unit, inner before outer; returns the wrapped model."""
    options = options_of(plan, mesh)
    for unit in plan.units:
        name, = unit.modules
        module = by_name(model)[name]
        left_out = [m for n, m in by_name(module).items() if f"{name}.{n}".strip(".") in plan["ignored"]]
        wrapped = FullyShardedDataParallel(module, sharding_strategy=strategy(plan, unit),
                                           ignored_modules=left_out, **casting_if_adapter(name, options))
        if name:
            replace(model, name, wrapped)
        else:
            model = wrapped
    return model


def casting_if_adapter(name, options):
    """peft casts an adapter's input to the dtype of its weight, which outside of its unit is the shard's: the unit
    casts it back."""
    if "lora_" not in name or "mixed_precision" not in options:
        return options
    casting = dataclasses.replace(options["mixed_precision"], cast_forward_inputs=True)
    return options | {"mixed_precision": casting}


def strategy(plan, unit):
    keeps = unit.reshard_after_forward is False
    if plan.shard == 1:
        return ShardingStrategy.NO_SHARD
    if plan.replicate > 1:
        return ShardingStrategy._HYBRID_SHARD_ZERO2 if keeps else ShardingStrategy.HYBRID_SHARD
    return ShardingStrategy.SHARD_GRAD_OP if keeps else ShardingStrategy.FULL_SHARD


def prefetch(plan):
    if plan["backward_prefetch"] == 0:
        return None
    return BackwardPrefetch.BACKWARD_POST if plan["backward_post"] else BackwardPrefetch.BACKWARD_PRE


def options_of(plan, mesh):
    device = torch.device(mesh.device_type) if mesh.device_type == "cpu" else torch.cuda.current_device()
    options = dict(device_id=device, use_orig_params=plan["use_orig_params"], backward_prefetch=prefetch(plan),
                   forward_prefetch=plan["forward_prefetch"] > 0, limit_all_gathers=plan["limit_all_gathers"])
    if plan.replicate > 1 and plan.shard > 1:
        options["device_mesh"] = mesh
    if (plan["param_dtype"], plan["reduce_dtype"]) != ("fp32", "fp32"):
        options["mixed_precision"] = MixedPrecision(param_dtype=DTYPES[plan["param_dtype"]],
                                                    reduce_dtype=DTYPES[plan["reduce_dtype"]])
    if plan["offload"]:
        options["cpu_offload"] = CPUOffload(offload_params=True)
    return options


def units_of(model):
    """[(plain name, wrapper)] of the wrapped modules, inner before outer."""
    found = [(plain(name), m) for name, m in model.named_modules() if isinstance(m, FullyShardedDataParallel)]
    return sorted(found, key=lambda pair: pair[0], reverse=True)


def full_names(unit, handle):
    """Plain names of the parameters that a flat one holds."""
    return [plain(f"{unit}.{name}".strip(".")) for name in handle.flat_param._fqns]


def settings(wrapper, plan):
    """[(what, PyTorch's, the plan's)] of one wrapper."""
    policy = wrapper.mixed_precision
    dtypes = (policy.param_dtype, policy.reduce_dtype)
    wanted = (DTYPES[plan["param_dtype"]], DTYPES[plan["reduce_dtype"]])
    plain_policy = wanted == (torch.float32, torch.float32) and dtypes == (None, None)
    return [("dtypes of parameters, reduction", wanted if plain_policy else dtypes, wanted),
            ("backward prefetch", wrapper.backward_prefetch, prefetch(plan)),
            ("forward prefetch", wrapper.forward_prefetch, plan["forward_prefetch"] > 0),
            ("limit_all_gathers", wrapper.limit_all_gathers, plan["limit_all_gathers"]),
            ("use_orig_params", wrapper._use_orig_params, plan["use_orig_params"]),
            ("offload", wrapper.cpu_offload.offload_params, plan["offload"])]
