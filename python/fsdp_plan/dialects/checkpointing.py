"""Activation checkpointing of exactly the plan's modules."""
import collections

from fsdp_plan.needs_torch import torch
from fsdp_plan.errors import PlanError
from fsdp_plan.modules import by_name, plain, replace
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (CheckpointWrapper, OffloadWrapper,
                                                                        checkpoint_wrapper, offload_wrapper)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

ATTENTION = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")


def keep_selectively():
    """torchtitan's policy: results of attention, of products with a bias and of every second one without are kept."""
    aten, products = torch.ops.aten, collections.Counter()
    kept = {getattr(aten, "_scaled_dot_product_" + name).default for name in ATTENTION
            if hasattr(aten, "_scaled_dot_product_" + name)}

    def policy(context, op, *args, **kwargs):
        if op == aten.mm.default:
            products[context.is_recompute] += 1
        keep = op in kept or op == aten.addmm.default
        keep = keep or (op == aten.mm.default and products[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def refuse_checkpointed(model):
    """Before anything is changed."""
    if already := checkpointed(model):
        raise PlanError(f"the model checkpoints '{next(iter(already))}' already: leave that to the plan")


def wrap_checkpoints(model, plan):
    """Replaces each checkpointed module by one that recomputes its forward in backward. Before fully_shard."""
    how = {"context_fn": keep_selectively} if plan["checkpoint_policy"] == "selective-op" else {}
    modules = by_name(model)
    for name in plan["checkpointed"]:
        again = checkpoint_wrapper(modules[name], **how)
        replace(model, name, offload_wrapper(again) if name in plan["offload_activations"] else again)


def is_selective(wrapper):
    return wrapper.checkpoint_fn.keywords.get("context_fn") is keep_selectively


def checkpointed(model):
    """{name: wrapper} of what recomputes; None: a module whose library checkpoints by itself."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, CheckpointWrapper):
            found[plain(name)] = module
        elif "gradient_checkpointing" in vars(module) and module.gradient_checkpointing:
            found.setdefault(plain(name), None)
    return found


def offloaded(model):
    """Names of modules whose input waits in host memory for the recomputation."""
    return {plain(name) for name, module in model.named_modules() if isinstance(module, OffloadWrapper)}
