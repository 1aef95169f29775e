"""What this package raises when a plan, a model and PyTorch do not fit together."""


class PlanError(ValueError):
    """The message says what differs and what to do."""
