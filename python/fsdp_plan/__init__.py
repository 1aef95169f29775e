"""Carries a plan of `fsdp-plan` out in PyTorch, proves that it took, and measures a run of it.

    import fsdp_plan
    fsdp_plan.export(model, inputs, "model.json")  # any model, for `fsdp-plan plan --model model.json`
    step = fsdp_plan.apply(model, "plan.json")     # shards the model as the plan says
    fsdp_plan.check(model, "plan.json")            # PyTorch's own state against the plan
    with fsdp_plan.record(step, "measurement.json"):
        ...                                        # four steps of training, or more

Importing this needs no PyTorch; the functions that use it say what is missing.
"""
import importlib
import importlib.metadata

# Where each name lives. No module has the name of a function: importing it would hide the function.
_HOMES = {"export": "tracing.exporting", "apply": "sharding", "check": "checking", "differences": "checking",
          "record": "recording", "Step": "steps", "chunked_loss": "loss", "Plan": "plan", "PlanError": "errors"}
__all__ = list(_HOMES)


def __getattr__(name):
    if name == "__version__":
        return importlib.metadata.version("fsdp-plan")
    if name not in _HOMES:
        raise AttributeError(f"module 'fsdp_plan' has no attribute '{name}'")
    return getattr(importlib.import_module("fsdp_plan." + _HOMES[name]), name)


def __dir__():
    return __all__ + ["__version__"]
