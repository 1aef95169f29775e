"""A call that must be refused in words that say what to do."""


def refused(words, call):
    """The message, which has `words` in it."""
    import fsdp_plan                         # here: callers put the package on the path first
    try:
        call()
    except fsdp_plan.PlanError as error:
        if words not in str(error):
            raise AssertionError(f"expected '{words}' in: {error}") from None
        return str(error)
    raise AssertionError(f"not refused: {words}")
