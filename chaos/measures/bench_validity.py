"""Whether an experiment says something about who was judged, or only about the machine it ran on. Pure.

The load generator, the simulated engines and everybody else share the cores. When requests leave late, when an
answer that is ready is not sent, or when others keep the machine busy, the numbers are of the bench.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.recorded_history import History
from chaos.history.request_outcomes import quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLimits:
    """What a bench may do and still count. ``others_percent`` of the machine may be used by other programs."""

    lag_p99_s: float
    lag_max_s: float
    engine_p99_s: float
    path_p99_s: float
    others_percent: float
    busy_percent: float


STRICT: Final = BenchLimits(
    lag_p99_s=0.02, lag_max_s=0.3, engine_p99_s=0.03, path_p99_s=0.05, others_percent=25.0, busy_percent=90.0
)
"""For numbers that are published and compared to a percent."""

FAIR: Final = BenchLimits(
    lag_p99_s=0.1, lag_max_s=1.0, engine_p99_s=0.15, path_p99_s=0.25, others_percent=85.0, busy_percent=100.0
)
"""For a yes or no with limits that leave room: late by a fifth of the usual service time of half a second.

What others use of the machine matters as far as it makes something late, which is seen; but for next to all of it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchQuality:
    """How well the bench itself worked. ``lag``: how late requests left. ``engine_delay``: from the end of the
    simulated work to the end of the call's answer. ``path``: from leaving the client to the engine, before the
    fault; seconds. ``problems`` is empty for a run that counts.
    """

    lag_p99_s: float
    lag_max_s: float
    engine_delay_p99_s: float
    path_p99_s: float
    problems: tuple[str, ...]


def bench_quality(
    history: History, limits: BenchLimits, *, fault_s: float, engines_until_s: float
) -> BenchQuality:
    """The judgement on one experiment whose first fault began at ``fault_s``. Engines are judged by what they had
    finished at ``engines_until_s``: a fault may be what keeps them from sending it.
    """
    lags_s = [one.lag_s for one in history.requests]
    delays_s = [
        one.closed_at_s - one.started_at_s - one.slot_s
        for one in history.attempts
        if one.fate is Fate.FINISHED and one.started_at_s is not None and one.closed_at_s <= engines_until_s
    ]
    found = {
        "lag_p99_s": quantile(lags_s, 0.99) or 0.0,
        "lag_max_s": max(lags_s, default=0.0),
        "engine_delay_p99_s": quantile(delays_s, 0.99) or 0.0,
        "path_p99_s": quantile(_paths_s(history, fault_s), 0.99) or 0.0,
    }
    problems = [
        *_too_much("requests left late (p99)", found["lag_p99_s"], limits.lag_p99_s),
        *_too_much("a request left late", found["lag_max_s"], limits.lag_max_s),
        *_too_much("engines sent answers late (p99)", found["engine_delay_p99_s"], limits.engine_p99_s),
        *_too_much("requests were on the way for long (p99)", found["path_p99_s"], limits.path_p99_s),
        *_machine(history, limits),
    ]
    if not history.requests:
        problems.append("no request was sent")
    return BenchQuality(**found, problems=tuple(problems))


def _machine(history: History, limits: BenchLimits) -> list[str]:
    used = history.used
    if used is None:
        return []
    found = []
    others = used.machine - used.ours
    if others > limits.others_percent:
        found.append(f"others used {others:.0f} % of the machine (allowed {limits.others_percent:.0f} %)")
    if used.machine > limits.busy_percent:
        found.append(f"the machine was {used.machine:.0f} % busy (allowed {limits.busy_percent:.0f} %)")
    return found


def _paths_s(history: History, fault_s: float) -> Sequence[float]:
    """Of requests before the fault: from leaving the client to arriving at the first engine."""
    first: dict[str, float] = {}
    for attempt in history.attempts:
        first.setdefault(attempt.request_id, attempt.at_s)
    return [
        first[one.request_id] - one.at_s - one.lag_s
        for one in history.requests
        if one.at_s < fault_s and one.request_id in first
    ]


def _too_much(what: str, seen_s: float, limit_s: float) -> list[str]:
    return [f"{what}: {1000 * seen_s:.0f} ms (allowed {1000 * limit_s:.0f} ms)"] if seen_s > limit_s else []
