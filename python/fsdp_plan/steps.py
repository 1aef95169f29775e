"""Training under a plan: which micro-batches reduce gradients, the clipping, the optimizer."""
import contextlib

from fsdp_plan.needs_torch import torch
from fsdp_plan.dialects import float8
from fsdp_plan.errors import PlanError
from fsdp_plan.host_states import HostStates
from fsdp_plan.modules import by_name
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel


def switches_of(plan, unit, last):
    """(reduce-scatter, all-reduce, reshard after backward) of a unit in a micro-batch; last: of the step's."""
    how = unit.grad_sync or plan["grad_sync"]
    return last or how != "last", last or how == "every", last or unit.reshard_after_backward


def is_last(plan, micro_batch):
    """Whether it ends a step; counted from 0, on through the steps."""
    return (micro_batch + 1) % len(plan["micro_batches"]) == 0


def synchronises(plan, micro_batch):
    """Whether a micro-batch reduces gradients, where a plan cannot say it unit by unit (fsdp1, ddp)."""
    return plan["grad_sync"] == "every" or is_last(plan, micro_batch)


@contextlib.contextmanager
def split_loss():
    """The loss of split logits and its backward belong inside. PyTorch's own leaves its operators installed where an
    exception, or a loop that is left, ends the block."""
    operators = loss_parallel()
    operators.__enter__()
    try:
        yield
    finally:
        operators.__exit__(None, None, None)


class Step:
    """What a plan says of a step.

        optimizer = step.optimizer()
        for weight, batch in step.micro_batches(batches):
            (weight * loss(step.model(batch))).backward()
        step.finish(optimizer)

    model: what to call (under fsdp2 the model itself). weight: a micro-batch's part of the step's sequences."""

    def __init__(self, model, plan):
        self.model, self.plan, self.host_states = model, plan, HostStates()
        modules = by_name(model) if plan.dialect == "fsdp2" else {}
        self.firsts = [(unit, modules[unit.first]) for unit in plan.units] if modules else []

    @property
    def data_rank(self):
        """Which micro-batches this rank takes: the ranks of a tensor group take the same ones."""
        return torch.distributed.get_rank() // self.plan.tensor

    def weights(self):
        sizes = self.plan["micro_batches"]
        return [size / sum(sizes) for size in sizes]

    def micro_batches(self, batches):
        """(weight, batch) of each, with gradients reduced and parameters resharded when the plan says."""
        batches = list(batches)
        if len(batches) != len(self.plan["micro_batches"]):
            raise PlanError(f"the plan has {len(self.plan['micro_batches'])} micro-batches a step, not {len(batches)}")
        for i, (weight, batch) in enumerate(zip(self.weights(), batches)):
            with self.micro_batch(i):
                yield weight, batch

    @contextlib.contextmanager
    def micro_batch(self, i):
        """Forward and backward of the i-th micro-batch belong inside."""
        with contextlib.ExitStack() as stack:
            if self.plan.splits_loss:
                stack.enter_context(split_loss())
            if self.plan.dialect == "fsdp2":
                self.set_switches(is_last(self.plan, i))
            elif not synchronises(self.plan, i):
                stack.enter_context(self.model.no_sync())
            yield

    def set_switches(self, last):
        for unit, module in self.firsts:
            reduces, all_reduces, reshards = switches_of(self.plan, unit, last)
            module.set_requires_gradient_sync(reduces, recurse=False)
            module.set_requires_all_reduce(reduces and all_reduces, recurse=False)
            module.set_reshard_after_backward(reshards, recurse=False)

    def finish(self, optimizer):
        """Clips as the plan says, steps, and clears the gradients. Returns the norm, or None without clipping."""
        norm = self.clip()
        self.step(optimizer)
        self.compute_scales()
        optimizer.zero_grad()
        return norm

    def step(self, optimizer):
        """Of finish(), where a loop clips by itself. States that the plan keeps in host memory come for it."""
        if self.plan["offload_optimizer"]:
            self.host_states.step(optimizer)
        else:
            optimizer.step()

    def clip(self):
        """Of finish(), where a library steps by itself: before its optimizer's step. Returns the norm, or None."""
        bound, kind = self.plan["clip_norm"], float(self.plan["clip_norm_type"])
        if bound is None:
            return None
        if self.plan.dialect == "fsdp1":
            return self.model.clip_grad_norm_(bound, kind)
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), bound, kind)

    def compute_scales(self):
        """Of finish(), where a library steps by itself: after its optimizer's step. Of weights gathered in 8 bits."""
        float8.compute_scales(self.model, self.plan)

    def optimizer(self):
        """The plan's, over the parameters that are trained. Ignored ones are plain tensors: a group of their own, as
        one pass over many parameters cannot hold both kinds."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        groups = [[p for p in trained if isinstance(p, DTensor) is sharded] for sharded in (True, False)]
        groups, o = [{"params": group} for group in groups if group], self.plan["optimizer"]
        common = {"lr": o["lr"], "weight_decay": o["weight_decay"]}
        if o["kind"] == "sgd":
            return torch.optim.SGD(groups, momentum=o.get("momentum", 0.0), **common)
        common.update(betas=(o["beta1"], o["beta2"]), eps=o["eps"])
        if o["kind"] == "adamw-8bit":
            from torchao.optim import AdamW8bit
            return AdamW8bit(groups, **common)
        # On a GPU one kernel steps many parameters and makes no temporaries.
        return torch.optim.AdamW(groups, fused=all(p.is_cuda for p in trained), **common)
