"""What fully_shard issues, in host order: [(action, unit, micro-batch)], in the words of `fsdp-plan show step`.

Patches what FSDP calls for as long as it is entered. What the training loop or a library sends by itself (the norm of
gradients, a mean loss) is not FSDP's, and is left out."""
from fsdp_plan.needs_torch import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_module

# Stream by its letter (simulator/records/rows.h).
ACTIONS = {"all_gather": "G", "gather_copy_out": "D", "reduce_scatter": "R", "all_reduce": "A"}
# Renamed in PyTorch 2.15.
COLLECTIVES = {"all_gather": ("all_gather_single", "all_gather_into_tensor"),
               "reduce_scatter": ("reduce_scatter_single", "reduce_scatter_tensor"), "all_reduce": ("all_reduce",)}
INSIDE = ("unshard", "wait_for_unshard", "post_backward", "_to_unsharded", "finalize_backward")


class OrderLog:
    """groups: {id(FSDPParamGroup): unit's index}. seen(action, unit) is called as each is issued; each collective runs
    inside of around()."""

    def __init__(self, groups, seen, around):
        self.groups, self.seen, self.around, self.unit, self.originals = groups, seen, around, None, []

    def inside(self, name, original):
        def call(group, *args, **kwargs):
            before, self.unit = self.unit, self.groups.get(id(group))
            if name == "_to_unsharded" and group._sharded_state.name != "UNSHARDED":
                self.note("gather_copy_out")
            try:
                return original(group, *args, **kwargs)
            finally:
                self.unit = before
        return call

    def collective(self, action, original):
        def call(*args, **kwargs):
            self.note(action)
            with self.around():
                return original(*args, **kwargs)
        return call

    def note(self, action):
        if self.unit is not None:
            self.seen(action, self.unit)

    def patches(self):
        group = group_module.FSDPParamGroup
        for name in INSIDE:
            if hasattr(group, name):
                yield group, name, lambda original, name=name: self.inside(name, original)
        for action, names in COLLECTIVES.items():
            name = next(n for n in names if hasattr(dist, n))
            yield dist, name, lambda original, action=action: self.collective(action, original)

    def __enter__(self):
        for holder, name, make in self.patches():
            original = getattr(holder, name)
            self.originals.append((holder, name, original))
            setattr(holder, name, make(original))
        return self

    def __exit__(self, *_):
        for holder, name, original in reversed(self.originals):
            setattr(holder, name, original)
        self.originals.clear()
