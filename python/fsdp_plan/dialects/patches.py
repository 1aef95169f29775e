"""What the recorders of all dialects share: functions of PyTorch that are replaced for a while, and refusals."""
from fsdp_plan.errors import PlanError


class Patches:
    """patches() of a child: [(holder, name, function of the original that makes what stands in its place)]."""

    def __init__(self):
        self.originals = []

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


def refuse_unplanned(modules, is_planned):
    if not is_planned:
        raise PlanError(f"{modules} is a unit that the plan does not have: fsdp_plan.check says more")


def refuse_unsharded(units):
    if not units:
        raise PlanError("the model is not sharded: record after fsdp_plan.apply")
