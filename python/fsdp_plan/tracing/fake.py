"""The model and its batch as tensors without data, on the CPU, in the type that training computes in."""
import contextlib
import copy

from fsdp_plan.errors import PlanError
from fsdp_plan.modules import plain
from fsdp_plan.needs_torch import torch
from fsdp_plan.tracing.extents import BATCH
from torch._subclasses.fake_tensor import (DataDependentOutputException, FakeTensor, FakeTensorMode,
                                           unset_fake_temporarily)
from torch.utils._pytree import tree_leaves, tree_map


def is_floating(tensor):
    return tensor.is_floating_point()


def empty_like(tensor, dtype):
    return torch.empty(tensor.shape, dtype=dtype if is_floating(tensor) else tensor.dtype)


def parameter_like(p, dtype):
    return torch.nn.Parameter(empty_like(p, dtype), p.requires_grad and is_floating(p))


def check_plain(model):
    """What wrappers do is the plan's business."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind == "OptimizedModule":
            raise PlanError(f"'{name}' is compiled: export the model before torch.compile")
        if plain(name) != name or kind.startswith("FSDP"):
            raise PlanError(f"'{name}' is a wrapper's: export the model as it is before it is sharded or checkpointed")


def copied(model, dtype):
    check_plain(model)
    memo = {id(p): parameter_like(p, dtype) for p in model.parameters()}
    memo.update({id(b): torch.empty(b.shape, dtype=b.dtype) for b in model.buffers()})
    for module in model.modules():
        memo.update({id(t): torch.empty(t.shape, dtype=t.dtype) for t in vars(module).values()
                     if isinstance(t, torch.Tensor)})
    return copy.deepcopy(model, memo)


def called(make):
    """What a user's function makes of tensors without data."""
    try:
        try:
            return make()
        except DataDependentOutputException:    # it looks at a tensor that it makes: on the meta device those are real
            with unset_fake_temporarily(), torch.device("meta"):
                return make()
    except PlanError:
        raise
    except Exception as error:
        raise PlanError(f"the factory fails where tensors have no data ({type(error).__name__}: "
                        f"{str(error).partition(chr(10))[0]}): build it on the CPU, or on the meta device, without "
                        "weights and without a GPU") from error


def is_faked(model, mode):
    return all(isinstance(p, FakeTensor) and p.fake_mode is mode for p in model.parameters())


def built(make, dtype, mode):
    model = called(make)
    if isinstance(model, torch.nn.Module) and not is_faked(model, mode):
        model = copied(model, dtype)
    if not isinstance(model, torch.nn.Module):
        raise PlanError(f"the factory returned a {type(model).__name__}, and must return a torch.nn.Module")
    return model


def without_data(make, dtype, mode):
    """`make`: a function that builds a module, or a module, which stays as it is. Called in `mode`."""
    model = copied(make, dtype) if isinstance(make, torch.nn.Module) else built(make, dtype, mode)
    check_plain(model)
    if hasattr(model, "gradient_checkpointing_disable") and getattr(model, "is_gradient_checkpointing", False):
        model.gradient_checkpointing_disable()
    known = {}
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                module._parameters[name] = known.setdefault(id(p), (parameter_like(p, dtype), p))[0]
        for name, b in module._buffers.items():
            if b is not None and (not isinstance(b, FakeTensor) or b.device.type != "cpu"):
                module._buffers[name] = torch.empty(b.shape, dtype=b.dtype)
    return model.train()


def sequences_of(inputs):
    """The first extent that all tensors of the batch share."""
    tensors = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.dim()]
    if not tensors:
        raise PlanError("inputs: hold no tensor; give the model's arguments, such as {'input_ids': (ids), ...}")
    counts = {t.shape[0] for t in tensors}
    if len(counts) > 1:
        raise PlanError(f"inputs: their first dimensions differ ({', '.join(map(str, sorted(counts)))}), and must be "
                        "the number of sequences")
    return counts.pop()


def many(inputs, dtype):
    """The batch with BATCH sequences in place of its own, and what is floating in `dtype`, as FSDP casts it."""
    sequences = sequences_of(inputs)

    def one(t):
        if not isinstance(t, torch.Tensor) or not t.dim():
            return t
        return torch.zeros(BATCH, *t.shape[1:], dtype=dtype if is_floating(t) else t.dtype)
    return tree_map(one, inputs), sequences


@contextlib.contextmanager
def mode():
    with FakeTensorMode(allow_non_fake_inputs=True) as entered:
        yield entered
