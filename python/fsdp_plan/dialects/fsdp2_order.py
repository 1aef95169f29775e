"""What fully_shard issues, in host order, in the words of `fsdp-plan show step`.

Patches what FSDP calls for as long as it is entered. What the training loop or a library sends by itself (the norm of
gradients, a mean loss) is not FSDP's, and is left out. Collectives over tensor ranks are DTensor's."""
from fsdp_plan.needs_torch import torch
from fsdp_plan.dialects import fsdp2_state
from fsdp_plan.dialects.patches import Patches, refuse_unplanned, refuse_unsharded
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_module

ACTIONS = ("all_gather", "gather_copy_out", "reduce_scatter", "all_reduce")
# Renamed in PyTorch 2.15.
COLLECTIVES = {"all_gather": ("all_gather_single", "all_gather_into_tensor"),
               "reduce_scatter": ("reduce_scatter_single", "reduce_scatter_tensor"), "all_reduce": ("all_reduce",)}
INSIDE = ("unshard", "wait_for_unshard", "post_backward", "_to_unsharded", "finalize_backward")


class Called:
    """An operator of PyTorch, called in another way."""

    def __init__(self, operator, call):
        self.operator, self.call = operator, call

    def __call__(self, *args):
        return self.call(*args)

    def __getattr__(self, name):
        return getattr(self.operator, name)


class OrderLog(Patches):
    """seen(action, unit) is called as each is issued; each collective runs inside of around()."""

    def __init__(self, model, plan, seen, around):
        super().__init__()
        self.units, self.seen, self.around, self.unit = {}, seen, around, None
        self.tensor, self.in_step = None, False      # ranks of the tensor group; from a forward to its backward's end
        planned = {fsdp2_state.key(unit): unit for unit in plan.units}
        for modules, state in fsdp2_state.states_of(model).items():
            refuse_unplanned(list(modules), modules in planned)
            if group := fsdp2_state.group_of(state):
                self.units[id(group)], self.device = planned[modules], group.device  # offloaded shards are elsewhere
        refuse_unsharded(self.units)
        if plan.tensor > 1:
            self.tensor = dist.get_process_group_ranks(fsdp2_state.tensor_group(model))

    def inside(self, name, original):
        def call(group, *args, **kwargs):
            before, self.unit = self.unit, self.units.get(id(group))
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

    def over_tensor(self, action, original):
        """Seen when it has been issued, with the memory of what it reads and of its result."""
        def call(*args):                     # the group is the last
            result = original(*args)
            # By its ranks: DTensor may use the group of an equal mesh that was there before.
            if self.in_step and dist.get_process_group_ranks(_resolve_process_group(args[-1])) == self.tensor:
                self.seen("tensor " + action, None)
            return result
        return Called(original, call)

    def waited(self, original):
        def call(*args):
            result = original(*args)
            with self.around():              # what gloo's threads held is let go of
                return result
        return Called(original, call)

    def step_of(self, begins, original):
        def call(*args, **kwargs):
            self.in_step = self.in_step or begins
            result = original(*args, **kwargs)
            self.in_step = begins
            return result
        return call

    def note(self, action):
        if self.unit is not None:
            self.seen(action, self.unit.text)

    def patches(self):
        group = group_module.FSDPParamGroup
        for name in INSIDE:
            if hasattr(group, name):
                yield group, name, lambda original, name=name: self.inside(name, original)
        for action, names in COLLECTIVES.items():
            name = next(n for n in names if hasattr(dist, n))
            yield dist, name, lambda original, action=action: self.collective(action, original)
        if self.tensor is None:
            return
        functional = torch.ops._c10d_functional
        for action, names in COLLECTIVES.items():
            yield functional, names[-1], lambda original, action=action: self.over_tensor(action, original)
        yield functional, "wait_tensor", self.waited
        yield FSDPState, "_root_pre_forward", lambda original: self.step_of(True, original)
        yield FSDPState, "_root_post_backward_final_callback", lambda original: self.step_of(False, original)
