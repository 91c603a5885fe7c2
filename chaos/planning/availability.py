"""Probability that one engine is down, kept as that small number: 1 - 1e-12 loses digits as a float.

Uptime is read as text and subtracted from one in decimal. Crash rate and repair time give the down share directly.
"""

from decimal import Decimal, InvalidOperation
from typing import Final

from chaos.planning.error import PlanError

HOURS_PER_MONTH: Final = 730.0
"""8 760 hours a year / 12: price per hour times this is the price per month."""

SECONDS_PER_DAY: Final = 86_400.0


def unavailability(text: str) -> float:
    """One minus the probability in ``text``, such as ``0.9999`` or ``99.99%``, exact to float precision.

    Raises ``PlanError`` unless it is a probability, 0 and 1 included.
    """
    clean = text.strip()
    try:
        value = Decimal(clean.removesuffix("%")) / (100 if clean.endswith("%") else 1)
    except InvalidOperation as error:
        raise PlanError(f"{text!r} is not a probability: write 0.999 or 99.9%") from error
    if not value.is_finite() or not 0 <= value <= 1:
        hint = f"; did you mean {text}%?" if value.is_finite() and 1 < value <= 100 else ""
        raise PlanError(f"{text!r} is not a probability: must be 0 to 1{hint}")
    return float(1 - value)


def down_share(*, crashes_per_day: float, repair_s: float, detection_s: float = 0.0) -> float:
    """Share of time one engine is down.

    It crashes at a constant rate while up (mean 1/rate), then stays down for ``detection_s`` plus ``repair_s``.
    """
    if crashes_per_day < 0 or repair_s < 0 or detection_s < 0:
        raise PlanError("crash rate, repair and detection time must not be negative")
    down_s = repair_s + detection_s
    load = crashes_per_day / SECONDS_PER_DAY * down_s
    return load / (1 + load)
