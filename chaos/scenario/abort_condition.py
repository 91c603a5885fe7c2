"""When an experiment is stopped before its time. Pure."""

from collections.abc import Iterable

from chaos.scenario.scenario_model import AbortCondition

FEWEST_REQUESTS = 5
"""Requests that must have been due in the window before silence alone says anything."""


def abort_reason(
    abort: AbortCondition, ended: Iterable[tuple[float, bool]], now_s: float, rate_per_s: float
) -> str:
    """Why to stop now; empty when there is no reason to.

    ``ended`` are requests that got their answer, or none: when, and whether it was good. Before a whole window has
    passed nothing is said. When nothing at all ended although enough was asked, no answer was good.
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
    return (
        f"{percent:.0f} % of the answers of the last {abort.after:g} s were good, "
        f"and the scenario stops below {abort.goodput_below_percent:g} %"
    )
