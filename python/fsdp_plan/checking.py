"""check(): PyTorch's own state of a model against a plan."""
from fsdp_plan.needs_torch import NAMES, torch
from fsdp_plan.dialects import float8, fsdp1, fsdp2_state
from fsdp_plan.dialects.checkpointing import checkpointed, is_selective, offloaded
from fsdp_plan.errors import PlanError
from fsdp_plan.modules import parameters_by_name
from fsdp_plan.plan import Plan
from fsdp_plan.steps import Step, synchronises

SHOWN = 5


def check(model, plan=None, *, micro_batch=None, source=None, lora=None):
    """Raises PlanError with the first differences between what PyTorch holds and what the plan says. model: sharded, by
    apply() or by whatever framework; or the Step of apply(), which knows its plan. micro_batch: the one about to run,
    so that gradient synchronisation is compared too."""
    found = differences(model, plan, micro_batch=micro_batch, source=source, lora=lora)
    if found:
        more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise PlanError("the model does not carry the plan out:\n  " + "\n  ".join(found[:SHOWN]) + more)


def differences(model, plan=None, *, micro_batch=None, source=None, lora=None):
    """The same as a list of texts; empty: none."""
    if isinstance(model, Step):
        model, plan = model.model, plan if plan is not None else model.plan
    if plan is None:
        raise PlanError("no plan to check against: give plan.json")
    plan = Plan.load(plan, source if source is not None else model, lora)
    of_units = {"fsdp2": of_fsdp2, "fsdp1": of_fsdp1, "ddp": of_ddp}[plan.dialect](model, plan, micro_batch)
    inside = getattr(model, "module", model) if plan.dialect == "ddp" else model
    return of_units + float8.differences(inside, plan) + of_checkpoints(inside, plan)


def named(modules):
    return "unit [" + ", ".join(name or "root" for name in modules) + "]"


def of_fsdp2(model, plan, micro_batch):
    forced = torch.distributed.is_initialized() and "gloo" == torch.distributed.get_backend()
    there = fsdp2_state.observed(model, micro_batch)
    wanted = fsdp2_state.planned(model, plan, forced, micro_batch)
    found = []
    for modules in wanted:
        if modules not in there and wanted[modules]["parameters"]:
            found.append(f"{named(modules)}: fully_shard was not called on it, or on other modules beside them")
    for modules, values in there.items():
        if modules not in wanted:
            found.append(f"{named(modules)}: fully_shard was called on it; the plan has no such unit")
            continue
        for what, value in values.items():
            if value != wanted[modules].get(what, value):
                found.append(f"{named(modules)}: {what}: {value}, planned {wanted[modules][what]}")
    return found + of_parameters(model, plan)


def of_parameters(model, plan):
    """Of every parameter: its dtype between steps, and whether it is trained, as in the plan. (A unit that is whole at
    the moment registers its gathered parameters: the shards are FSDP's own.)"""
    shards = {name: p.sharded_param for p, name in fsdp2_state.parameter_names(model).items()}
    parameters, found = {**parameters_by_name(model), **shards}, []
    for planned in plan.parameters:
        p = parameters.get(planned.name)
        if p is None:
            found.append(f"parameter {planned.name}: is not there")
            continue
        if p.requires_grad != planned.trained:
            found.append(f"parameter {planned.name}: {'trained' if p.requires_grad else 'frozen'}, planned otherwise")
        if NAMES.get(p.dtype) != plan.kept_dtype(planned):
            found.append(f"parameter {planned.name}: kept in {NAMES.get(p.dtype, p.dtype)}, planned "
                         f"{plan.kept_dtype(planned)}")
    return found


def of_fsdp1(model, plan, micro_batch):
    there, found = dict(fsdp1.units_of(model)), []
    for unit in plan.units:
        wrapper = there.pop(unit.first, None)
        if wrapper is None:
            found.append(f"{named(unit.modules)}: is not wrapped by FullyShardedDataParallel")
            continue
        handle = wrapper._handle
        held = sorted(fsdp1.full_names(unit.first, handle)) if handle else []
        if held != sorted(unit.parameters):
            found.append(f"{named(unit.modules)}: parameters: {held}, planned {sorted(unit.parameters)}")
        if handle and wrapper.sharding_strategy != fsdp1.strategy(plan, unit):
            found.append(f"{named(unit.modules)}: {wrapper.sharding_strategy.name}, planned "
                         f"{fsdp1.strategy(plan, unit).name}")
        for what, value, wanted in fsdp1.settings(wrapper, plan):
            if value != wanted:
                found.append(f"{named(unit.modules)}: {what}: {value}, planned {wanted}")
        found += [f"{named(unit.modules)}: {text}" for text in of_sync(wrapper._sync_gradients, plan, micro_batch)]
    return found + [f"{named([name])}: is wrapped; the plan has no such unit" for name in there]


def of_sync(there, plan, micro_batch):
    if micro_batch is None or there == synchronises(plan, micro_batch):
        return []
    return [f"reduces gradients: {there}, planned {not there}"]


def of_ddp(model, plan, micro_batch):
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return ["the model is not wrapped by DistributedDataParallel"]
    ranks = torch.distributed.get_world_size(model.process_group)
    found = [f"{ranks} ranks, planned {plan.ranks}"] if ranks != plan.ranks else []
    return found + of_sync(model.require_backward_grad_sync, plan, micro_batch)


def of_checkpoints(model, plan):
    there, found, selective = checkpointed(model), [], plan["checkpoint_policy"] == "selective-op"
    for name, wrapper in there.items():
        if name not in plan["checkpointed"]:
            found.append(f"module '{name}' recomputes its forward; the plan does not")
        elif wrapper is not None and is_selective(wrapper) != selective:
            found.append(f"module '{name}' recomputes {'some ops' if not selective else 'everything'}, planned "
                         f"{plan['checkpoint_policy']}")
    in_host = offloaded(model)
    found += [f"the input of '{name}' waits {'in host memory' if name in in_host else 'on the device'}, not as planned"
              for name in sorted(in_host ^ set(plan["offload_activations"]))]
    return found + [f"module '{name}' does not recompute its forward" for name in plan["checkpointed"]
                    if name not in there]
