"""The ddp dialect: DistributedDataParallel, whose buckets are the plan's units where they can be."""
import inspect

from fsdp_plan.modules import parameters_by_name, plain
from fsdp_plan.needs_torch import torch
from torch.nn.parallel import DistributedDataParallel

ACTIONS = ("all_reduce",)
MIB = 2 ** 20


def wrap(model, plan):
    """Gradients are views of the buckets, as the plan's prediction has them. From PyTorch 2.15 on a bucket is made when
    its first gradient is; before, all of them are there from the start."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    wanted = {"gradient_as_bucket_view": True, "lazy_bucket_allocation": True}
    if sizes := bucket_sizes(model, plan):
        wanted["bucket_cap_mb_list"] = [size / MIB for size in sizes]
    return DistributedDataParallel(model, **{name: value for name, value in wanted.items() if name in known})


def bucket_sizes(model, plan):
    """Bytes of each unit's gradients, in the order in which backward ends them. None: the root's own parameters are
    used before and after the other units, and a bucket is filled in the order of backward."""
    units = [unit for unit in reversed(plan.ends()) if unit.parameters]
    if len(units) > 1 and any(unit.first == "" for unit in units):
        return None
    named = parameters_by_name(model)
    trained = [[named[name] for name in unit.parameters if named[name].requires_grad] for unit in units]
    return [sum(p.numel() * p.element_size() for p in unit) for unit in trained if unit]


class OrderLog:
    """What its buckets issue: seen(action, unit) is called as each is, and each collective runs inside of around()."""

    def __init__(self, model, plan, seen, around):
        if not isinstance(model, DistributedDataParallel):
            from fsdp_plan.dialects.patches import refuse_unsharded
            refuse_unsharded(None)
        self.model, self.seen, self.around = model, seen, around
        self.device = next(model.parameters()).device
        self.names = {id(p): plain(name) for name, p in model.module.named_parameters()}
        trained = {name for name, p in model.module.named_parameters() if p.requires_grad}
        self.texts = {frozenset(map(plain, trained)) & frozenset(u.parameters): u.text for u in plan.units
                      if u.parameters}

    def __enter__(self):
        hook = vars(self.model).get("_fsdp_plan_hook")
        if hook is None:                     # PyTorch takes one, and does not let go of it
            hook = self.model._fsdp_plan_hook = BucketHook(self.model.process_group)
            self.model.register_comm_hook(hook, BucketHook.call)
        hook.log = self
        return self

    def __exit__(self, *_):
        self.model._fsdp_plan_hook.log = None

    def issued(self, bucket):
        names = [self.names[id(p)] for p in bucket.parameters()]
        self.seen("all_reduce", self.texts.get(frozenset(names), f"bucket ({names[0]} and {len(names) - 1} more)"))


class BucketHook:
    """As DistributedDataParallel without a hook: the mean over the ranks."""

    def __init__(self, group):
        self.group, self.log = group, None

    def call(self, bucket):
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
        if self.log is None:
            return allreduce_hook(self.group, bucket)
        self.log.issued(bucket)
        with self.log.around():
            return allreduce_hook(self.group, bucket)
