"""An experiment in steps of 0.5 s or longer, for charts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from chaos.history.recorded_history import History
from chaos.history.request_outcomes import OutcomeReason
from chaos.measures.impairments import Impairment, ejectable
from chaos.measures.request_periods import arrived_between

BIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBin:
    """One step of arrivals and their results.

    Requests in flight and admission limits are the proxies' values at its end; None without a sample. ``on_bad``:
    requests in flight on broken engines.
    """

    at_s: float
    arrived: int
    good: int
    shed: int
    failed: int
    worst_s: float | None
    in_flight: int | None
    on_bad: int | None
    ceiling: float | None


def time_bins(history: History, troubles: Sequence[Impairment], bin_s: float = BIN_S) -> list[TimeBin]:
    """The whole experiment, in steps of ``bin_s``."""
    found = []
    for place in range(round(history.end_s / bin_s)):
        start_s = place * bin_s
        some = arrived_between(history.requests, start_s, start_s + bin_s)
        newest = {
            one.proxy: one for one in history.samples if start_s <= one.at_s < start_s + bin_s
        }  # the last sample of each proxy wins
        ill = {one.engine for one in ejectable(troubles) if one.start_s <= start_s + bin_s and start_s < one.end_s}
        ceilings = [one.ceiling for one in newest.values() if one.ceiling is not None]
        found.append(
            TimeBin(
                at_s=start_s,
                arrived=len(some),
                good=sum(one.ok for one in some),
                shed=sum(one.reason is OutcomeReason.SHED for one in some),
                failed=sum(not one.ok and one.reason is not OutcomeReason.SHED for one in some),
                worst_s=max((one.latency_s for one in some if one.ok), default=None),
                in_flight=sum(sum(one.in_flight.values()) for one in newest.values()) if newest else None,
                on_bad=(
                    sum(one.in_flight.get(engine, 0) for one in newest.values() for engine in ill)
                    if newest
                    else None
                ),
                ceiling=sum(ceilings) if ceilings else None,
            )
        )
    return found
