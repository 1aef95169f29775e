"""What FullyShardedDataParallel issues, in host order, in the words of `fsdp-plan show step`."""
from fsdp_plan.dialects import fsdp1
from fsdp_plan.dialects.fsdp2_order import COLLECTIVES
from fsdp_plan.dialects.patches import Patches, refuse_unplanned, refuse_unsharded
import torch.distributed as dist
from torch.distributed.fsdp import _flat_param, _runtime_utils

ACTIONS = ("all_gather", "reduce_scatter", "all_reduce")
# On processors all-gathers go through the call that takes a list. The norm of clipping is outside of units.
NAMES = {**COLLECTIVES, "all_gather": (*COLLECTIVES["all_gather"], "all_gather")}


class OrderLog(Patches):
    """seen(action, unit) is called as each is issued; each collective runs inside of around()."""

    def __init__(self, model, plan, seen, around):
        super().__init__()
        self.units, self.seen, self.around, self.unit = {}, seen, around, None
        planned = {unit.first: unit for unit in plan.units}
        for name, wrapper in fsdp1.units_of(model):
            refuse_unplanned([name], name in planned)
            if wrapper._handle is not None:
                self.units[id(wrapper._handle)], self.device = planned[name], wrapper.compute_device
        refuse_unsharded(self.units)

    def inside(self, original):
        def call(*args, **kwargs):
            before = self.unit
            self.unit = next((u for u in (self.units.get(id(a)) for a in args) if u), before)
            try:
                return original(*args, **kwargs)
            finally:
                self.unit = before
        return call

    def collective(self, action, original):
        def call(*args, **kwargs):
            if self.unit is not None:
                self.seen(action, self.unit.text)
            with self.around():
                return original(*args, **kwargs)
        return call

    def patches(self):
        yield _flat_param.FlatParamHandle, "_all_gather_flat_param", self.inside
        yield _runtime_utils, "_reduce_grad", self.inside
        yield _runtime_utils, "_reduce_grad_no_shard", self.inside
        for action, names in NAMES.items():
            there = [name for name in names if hasattr(dist, name)]
            for name in there if action == "all_gather" else there[:1]:
                yield dist, name, lambda original, action=action: self.collective(action, original)
