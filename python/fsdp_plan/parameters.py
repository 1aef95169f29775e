"""Whether a model is the one that a plan was made for: the same parameters, trained and tied alike."""
import itertools

from fsdp_plan.needs_torch import DTYPES, NAMES
from fsdp_plan.errors import PlanError
from fsdp_plan.modules import by_name, inside, parameters_by_name, plain


def refuse(what):
    raise PlanError(f"the model is not the plan's: {what}")


def check_parameters(model, plan):
    """Raises PlanError with the first parameter that differs: in name or order, shape, ties, training, dtype."""
    ours = [(plain(name), p) for name, p in model.named_parameters()]
    for (name, p), planned in itertools.zip_longest(ours, plan.parameters, fillvalue=(None, None)):
        if isinstance(planned, tuple):
            refuse(f"it has '{name}', and the plan's has no more parameters ({len(plan.parameters)} in all)")
        if name is None:
            refuse(f"it has no '{planned.name}' ({len(ours)} parameters, the plan's has {len(plan.parameters)})")
        if name != planned.name:
            refuse(f"its parameter '{name}' stands where the plan's has '{planned.name}'")
        check_parameter(name, p, planned, DTYPES[plan.kept_dtype(planned)])
    every = parameters_by_name(model)
    for planned in plan.parameters:
        for alias in planned.aliases:
            if every.get(alias) is not every[planned.name]:
                refuse(f"'{alias}' is not tied to '{planned.name}' in it")
    check_modules(model, plan)


def check_parameter(name, p, planned, kept):
    if tuple(p.shape) != planned.shape:
        refuse(f"'{name}' is {list(p.shape)}, the plan's is {list(planned.shape)}")
    if p.requires_grad != planned.trained:
        refuse(f"'{name}' is {'trained' if p.requires_grad else 'frozen'}, the plan's is "
               f"{'trained' if planned.trained else 'frozen'}; call requires_grad_({planned.trained}) on it")
    if p.dtype != kept:
        refuse(f"'{name}' is {NAMES.get(p.dtype, p.dtype)}, the plan keeps it in {NAMES[kept]}; cast it before, such "
               f"as by model.to({kept})")


def check_modules(model, plan):
    there = by_name(model)
    named = [m for u in plan.units for m in u.modules] + plan["checkpointed"]
    for name in named:
        if name not in there:
            refuse(f"it has no module '{name}'")


def matching(model, names):
    """{parameter: name} of those that are named, or inside of a module that is."""
    return {p: n for n, p in parameters_by_name(model).items() if any(inside(n, name) for name in names)}
