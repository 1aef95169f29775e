"""Linear layers that multiply in 8 bits, as torchao's float8 training does, under torchtitan's filter: those whose
sides are multiples of 16, without the output layer."""
from fsdp_plan.needs_torch import torch
from fsdp_plan.errors import PlanError
from fsdp_plan.modules import by_name, innermost

OUTPUT = "lm_head"


def library():
    try:
        import torchao.float8
        return torchao.float8
    except ImportError as error:
        raise PlanError(f"the plan multiplies in 8 bits, which torchao does, and it cannot be imported ({error}): pip "
                        "install torchao, or plan without --float8") from None


def refuse(plan):
    """Before anything is changed."""
    if plan.float8 and plan.float8["recipe"] == "delayed":
        raise PlanError("the plan multiplies in 8 bits by the recipe delayed, which is TransformerEngine's: layers are "
                        "its own where the model makes them; plan with a recipe of torchao, or without --float8")
    if plan.float8 and plan.float8["recipe"] == "mxfp8":
        raise PlanError("the plan multiplies in 8 bits by the recipe mxfp8, whose kernels need a Blackwell GPU and "
                        "were not tried here; convert the layers to torchao's MXFP8Linear yourself and apply a plan "
                        "without --float8, or plan with another recipe")
    if plan.float8:
        library()


def converted(module, name):
    return module.in_features % 16 == 0 and module.out_features % 16 == 0 and name.rpartition(".")[2] != OUTPUT


def config_of(plan):
    if plan.float8.get("all_gather"):
        return library().Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    return library().Float8LinearConfig.from_recipe_name(plan.float8["recipe"])


def convert(model, plan):
    """In place, before anything wraps modules."""
    if plan.float8:
        library().convert_to_float8_training(model, config=config_of(plan), module_filter_fn=converted)


def compute_scales(model, plan):
    """Of all weights in one all-reduce, after the optimizer's step, where the plan has them computed before."""
    if plan.float8 and plan.float8.get("precomputed_scales"):
        library().precompute_float8_dynamic_scale_for_fsdp(model)


def multiplies_in_8_bits(module):
    """By names, as torchao need not be there; of all bases, as fully_shard gives its modules a class of their own."""
    return any(kind.__name__ == "Float8Linear" for kind in type(module).__mro__)


def differences(model, plan):
    """Which layers multiply in 8 bits, and how."""
    refuse(plan)
    modules = {name: innermost(m) for name, m in by_name(model).items()}
    linears = {name: m for name, m in modules.items() if isinstance(m, torch.nn.Linear)}
    wanted = {name for name, m in linears.items() if converted(m, name)} if plan.float8 else set()
    there = {name: m for name, m in linears.items() if multiplies_in_8_bits(m)}
    found = [f"module '{name}' multiplies in 8 bits; the plan does not" for name in there if name not in wanted]
    found += [f"module '{name}' does not multiply in 8 bits" for name in linears if name in wanted - set(there)]
    config = config_of(plan) if plan.float8 else None
    return found + [f"module '{name}' multiplies in 8 bits by another recipe than {plan.float8['recipe']}"
                    for name, m in there.items() if name in wanted and m.config != config]
