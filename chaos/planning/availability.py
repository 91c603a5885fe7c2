"""How likely one engine is down, kept as that small number: 1 - 1e-12 has lost its last digits as a float.

A share of uptime comes in as text and is taken from one exactly, in decimal; rates of crashes and times of repair
give the down share directly.
"""

from decimal import Decimal, InvalidOperation
from typing import Final

from chaos.planning.error import PlanError

HOURS_PER_MONTH: Final = 730.0
"""8 760 hours of a year in twelve parts: what a month costs is hours times this."""

SECONDS_PER_DAY: Final = 86_400.0


def unavailability(text: str) -> float:
    """One minus the probability written as ``text``, such as ``0.9999`` or ``99.99%``, exact to a float's end.

    Raises ``PlanError`` for what is no probability. One itself is allowed: what is missing is then 0.
    """
    clean = text.strip()
    try:
        value = Decimal(clean.removesuffix("%")) / (100 if clean.endswith("%") else 1)
    except InvalidOperation as error:
        raise PlanError(f"{text!r} is not a probability: write it such as 0.999 or 99.9%") from error
    if not value.is_finite() or not 0 <= value <= 1:
        hint = f"; did you mean {text}%?" if value.is_finite() and 1 < value <= 100 else ""
        raise PlanError(f"{text!r} is not a probability: it must lie between 0 and 1{hint}")
    return float(1 - value)


def down_share(*, crashes_per_day: float, repair_s: float, detection_s: float = 0.0) -> float:
    """Share of time one engine is down: crashes at a constant rate while it is up, out until seen and repaired.

    An engine is up 1/rate on the mean, then down for ``detection_s`` and ``repair_s``.
    """
    if crashes_per_day < 0 or repair_s < 0 or detection_s < 0:
        raise PlanError("a rate of crashes and a time of repair cannot be negative")
    down_s = repair_s + detection_s
    load = crashes_per_day / SECONDS_PER_DAY * down_s
    return load / (1 + load)
