"""Error raised by plans."""


class PlanError(ValueError):
    """Input is invalid or too large to compute; the message names the value and the limit."""
