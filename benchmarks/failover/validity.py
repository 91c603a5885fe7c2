"""Whether an experiment says something about who was measured, or only about the machine it ran on. Pure.

The load generator, the simulated engines and everybody else share the cores. When requests leave late, when an
answer that is ready is not sent, or when others keep the machine busy, the numbers are of the bench: such a run is
marked, kept for looking at, and never reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.failover.history import History
from benchmarks.failover.setting import Setting
from chaos.fake_engine.book import Outcome as Fate
from chaos.outcomes import quantile

LAG_P99_S: Final = 0.02
LAG_MAX_S: Final = 0.3
ENGINE_P99_S: Final = 0.03
PATH_P99_S: Final = 0.05
OTHERS_PERCENT: Final = 25.0
BUSY_PERCENT: Final = 90.0
FEWEST_BEFORE_PERCENT: Final = 99.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How well the bench itself worked. ``lag``: how late requests left. ``engine_delay``: from the end of the
    simulated work to the end of the call's answer. ``path``: from leaving the client to the engine, before the
    fault; seconds. ``problems`` is empty for a run that counts.
    """

    lag_p99_s: float
    lag_max_s: float
    engine_delay_p99_s: float
    path_p99_s: float
    problems: tuple[str, ...]


def bench(history: History, setting: Setting) -> Bench:
    """The judgement on one experiment."""
    lags_s = [one.lag_s for one in history.outcomes]
    delays_s = [
        one.closed_at_s - one.started_at_s - one.slot_s
        for one in history.attempts
        if one.fate is Fate.FINISHED and one.started_at_s is not None
    ]
    found = {
        "lag_p99_s": quantile(lags_s, 0.99) or 0.0,
        "lag_max_s": max(lags_s, default=0.0),
        "engine_delay_p99_s": quantile(delays_s, 0.99) or 0.0,
        "path_p99_s": quantile(_paths_s(history), 0.99) or 0.0,
    }
    problems = [
        *_too_much("requests left late (p99)", found["lag_p99_s"], LAG_P99_S),
        *_too_much("a request left late", found["lag_max_s"], LAG_MAX_S),
        *_too_much("engines sent answers late (p99)", found["engine_delay_p99_s"], ENGINE_P99_S),
        *_too_much("requests were on the way for long (p99)", found["path_p99_s"], PATH_P99_S),
    ]
    others = history.use.machine - history.use.ours
    if others > OTHERS_PERCENT:
        problems.append(f"others used {others:.0f} % of the machine (allowed {OTHERS_PERCENT:.0f} %)")
    if history.use.machine > BUSY_PERCENT:
        problems.append(f"the machine was {history.use.machine:.0f} % busy (allowed {BUSY_PERCENT:.0f} %)")
    if not history.outcomes:
        problems.append("no request was sent")
    elif setting.load_percent <= BUSY_PERCENT:
        # Whose answer was due before the fault: the others it may have hit.
        due_s = history.fault_s - 2.0 * setting.longest_service_s
        before = [one.ok for one in history.outcomes if one.arrived_at_s < due_s]
        good_percent = 100.0 * sum(before) / len(before) if before else 100.0
        if good_percent < FEWEST_BEFORE_PERCENT:
            problems.append(f"only {good_percent:.1f} % were served before the fault began")
    return Bench(**found, problems=tuple(problems))


def _paths_s(history: History) -> Sequence[float]:
    """Of requests before the fault: from leaving the client to arriving at the first engine."""
    first: dict[str, float] = {}
    for attempt in history.attempts:
        first.setdefault(attempt.request_id, attempt.arrived_at_s)
    return [
        first[one.request_id] - one.arrived_at_s - one.lag_s
        for one in history.outcomes
        if one.arrived_at_s < history.fault_s and one.request_id in first
    ]


def _too_much(what: str, seen_s: float, limit_s: float) -> list[str]:
    return [f"{what}: {1000 * seen_s:.0f} ms (allowed {1000 * limit_s:.0f} ms)"] if seen_s > limit_s else []
