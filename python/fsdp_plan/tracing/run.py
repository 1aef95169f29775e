"""One forward and backward of a model without data, recorded."""
import dataclasses
import gc
import os
import traceback
import warnings

from fsdp_plan.errors import PlanError
from fsdp_plan.needs_torch import torch
from fsdp_plan.tracing import fake, standins
from fsdp_plan.tracing.modules import Tree
from fsdp_plan.tracing.recorder import Recorder
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._pytree import tree_leaves

OTHER_DEVICE = getattr(fake_tensor, "FakeTensorDeviceMismatchError", ())     # of newer releases


@dataclasses.dataclass
class Run:
    tree: Tree
    recorder: Recorder
    batch: list             # bytes of the batch's tensors
    seq_len: int


def loss_of(output, inputs, loss):
    if loss is not None:
        return loss(output, inputs)
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", output)
    if not isinstance(found, torch.Tensor) or found.dim():
        raise PlanError("the model returns no loss: give loss=lambda output, inputs: ..., or labels among the inputs "
                        "of a model that computes it")
    return found


def seq_len_of(inputs, given):
    """Of ids, which stand as [sequences, tokens]; anything else counts as one, or as what is given."""
    found = [t.shape[1] for t in tree_leaves(inputs)
             if isinstance(t, torch.Tensor) and t.dim() == 2 and not t.is_floating_point()]
    if given is not None and found and given not in found:
        raise PlanError(f"seq_len: is {given}, and the inputs have ids of {found[0]} tokens: give inputs of the length "
                        "that is trained on, and leave seq_len out")
    return given or (found or [1])[0]


def record(make, inputs, loss, dtype, seq_len=None, prices=None):
    seq_len = seq_len_of(inputs, seq_len)
    with fake.mode() as mode:
        model = fake.without_data(make, dtype, mode)
        if hasattr(model, "config") and hasattr(model.config, "use_cache"):
            model.config.use_cache = False
        batch, _ = fake.many(inputs, dtype)
        tree = Tree(model)
        recorder = Recorder(tree, prices or {})
        for p, index in tree.index_of.items():
            recorder.knows_parameter(p, index)
        tensors = [t for t in tree_leaves(batch) if isinstance(t, torch.Tensor)]
        for t in [*model.buffers(), *tensors]:
            recorder.knows(t)
        gc.collect()
        gc.disable()
        try:
            with standins.in_place(), recorder.recording(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                forward_and_backward(recorder, model, batch, loss)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise PlanError(what_depends_on_data(error)) from None
        except PlanError:
            raise
        except OTHER_DEVICE as error:
            raise PlanError(f"the model's forward chooses a device by itself{place_of(error)}: take that of its inputs "
                            f"or parameters, as in x.to(ids.device) ({error})") from None
        except Exception as error:
            raise PlanError(f"the model fails on tensors without data, with {fake.BATCH:,} sequences in {dtype}: "
                            f"{type(error).__name__}: {error}") from error
        finally:
            gc.enable()
        return Run(tree, recorder, [t.numel() * t.element_size() for t in tensors],
                   seq_len)


def forward_and_backward(recorder, model, batch, loss):
    if isinstance(batch, dict):
        result = loss_of(model(**batch), batch, loss)
    else:
        result = loss_of(model(*batch), batch, loss)
    if not result.requires_grad:
        raise PlanError("nothing of the model is trained: no parameter's requires_grad reaches the loss")
    recorder.backward(result)


def what_depends_on_data(error):
    return (f"the model's forward depends on values of tensors ({error}){place_of(error)}, and a trace has none: take "
            "that out of it. Of transformers' mixtures of experts: config._experts_implementation = 'grouped_mm'")


def place_of(error):
    """" at FILE:LINE (its text)": the innermost line that is neither PyTorch's nor this package's."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    homes = [os.path.dirname(os.path.abspath(torch.__file__)), here]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(os.path.abspath(frame.filename).startswith(home + os.sep) for home in homes):
            return f" at {frame.filename}:{frame.lineno} ({frame.line})"
    return ""
