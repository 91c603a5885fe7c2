"""Whether an experiment measured its subject or only the machine it ran on. Pure.

The load generator, the simulated engines and other programs share the cores. Late requests, delayed answers or a
busy machine make the numbers those of the bench.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.recorded_history import History
from chaos.history.request_outcomes import quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLimits:
    """Limits for a valid bench. Other programs may use ``others_percent`` of the machine."""

    lag_p99_s: float
    lag_max_s: float
    engine_p99_s: float
    path_p99_s: float
    others_percent: float
    busy_percent: float


STRICT: Final = BenchLimits(
    lag_p99_s=0.02, lag_max_s=0.3, engine_p99_s=0.03, path_p99_s=0.05, others_percent=25.0, busy_percent=90.0
)
"""Limits for published numbers, compared to the percent."""

FAIR: Final = BenchLimits(
    lag_p99_s=0.1, lag_max_s=1.0, engine_p99_s=0.15, path_p99_s=0.25, others_percent=85.0, busy_percent=100.0
)
"""Limits for a yes or no with margin: late by a fifth of the usual service time of 0.5 s.

Use by other programs matters only if it delays something, which is measured, or if it is nearly the whole machine.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchQuality:
    """Quality of the bench, in seconds.

    ``lag``: delay of sent requests. ``engine_delay``: from the end of the simulated work to the end of the answer.
    ``path``: from the client to the engine, before the fault. ``problems`` is empty for a valid run.
    """

    lag_p99_s: float
    lag_max_s: float
    engine_delay_p99_s: float
    path_p99_s: float
    problems: tuple[str, ...]


def bench_quality(
    history: History, limits: BenchLimits, *, fault_s: float, engines_until_s: float
) -> BenchQuality:
    """Quality of an experiment whose first fault began at ``fault_s``.

    Engine delay counts until ``engines_until_s`` only, since later a fault may delay answers.
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
        *_too_much("requests sent late (p99)", found["lag_p99_s"], limits.lag_p99_s),
        *_too_much("request sent late (max)", found["lag_max_s"], limits.lag_max_s),
        *_too_much("engine answers sent late (p99)", found["engine_delay_p99_s"], limits.engine_p99_s),
        *_too_much("request path slow (p99)", found["path_p99_s"], limits.path_p99_s),
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
        found.append(f"other programs used {others:.0f} % of the CPU (limit {limits.others_percent:.0f} %)")
    if used.machine > limits.busy_percent:
        found.append(f"CPU {used.machine:.0f} % busy (limit {limits.busy_percent:.0f} %)")
    return found


def _paths_s(history: History, fault_s: float) -> Sequence[float]:
    """Times from client to first engine, of requests before the fault."""
    first: dict[str, float] = {}
    for attempt in history.attempts:
        first.setdefault(attempt.request_id, attempt.at_s)
    return [
        first[one.request_id] - one.at_s - one.lag_s
        for one in history.requests
        if one.at_s < fault_s and one.request_id in first
    ]


def _too_much(what: str, seen_s: float, limit_s: float) -> list[str]:
    return [f"{what}: {1000 * seen_s:.0f} ms (limit {1000 * limit_s:.0f} ms)"] if seen_s > limit_s else []
