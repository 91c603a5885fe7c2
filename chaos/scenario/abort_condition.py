"""When to stop an experiment early. Pure."""

from collections.abc import Iterable

from chaos.scenario.scenario_model import AbortCondition

FEWEST_REQUESTS = 5
"""Minimum requests due in the window before the lack of answers counts as bad."""


def abort_reason(
    abort: AbortCondition, ended: Iterable[tuple[float, bool]], now_s: float, rate_per_s: float
) -> str:
    """Return why to stop now; empty to continue.

    ``ended`` are finished requests: when, and whether good. The result is empty until a whole window has passed.
    If enough requests were due but none finished, goodput counts as 0.
    """
    if not abort.goodput_below_percent or now_s < abort.after:
        return ""
    lately = [good for at_s, good in ended if now_s - abort.after < at_s <= now_s]
    if not lately:
        if rate_per_s * abort.after < FEWEST_REQUESTS:
            return ""
        return f"no request ended in the last {abort.after:g} s"
    percent = 100.0 * sum(lately) / len(lately)
    if percent >= abort.goodput_below_percent:
        return ""
    return f"goodput was {percent:.0f} % over the last {abort.after:g} s (limit {abort.goodput_below_percent:g} %)"
