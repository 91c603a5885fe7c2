"""The one error of a plan."""


class PlanError(ValueError):
    """The numbers of the question cannot be, or are too large to be answered; the message says which and why."""
