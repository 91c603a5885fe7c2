"""Which statuses are retried: 503 always, 500 while failures look like the engines' and not the requests'.

An engine with a failed GPU and a live process answers 500, and another engine would have served the request. A bad
request gets a 500 from every engine, and every further try is wasted. One answer cannot tell them apart, but the
pool can: a fault of requests or model fails on *every* engine at the same time. So 500 is retried unless nearly
all engines with traffic fail; an engine that serves its share without failures proves that requests are fine.

Counts use calls rather than seconds where possible, so that they mean the same at any rate. Engines that fail one
after the other, as in a rolling restart, do not fail at the same time: those that are back have had many good
calls since.

Without telemetry 500 is retried. ``retries.attempts``, the retry budget and the ceiling bound that; an unnoticed
broken engine is not bounded.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from policies.resilience import ENGINE_FAILED, REPORTED_BEFORE_WORK, ResilienceSpec
from xds_server.decide.decision_memory import FailedCall, RecentFailures, RetryMemory
from xds_server.decide.decisions import EngineDecision, Health, RetryDecision
from xds_server.model.fleet import EngineId
from xds_server.model.pool_traffic import STALE_S, EngineTraffic, PoolTraffic

MIN_ENGINES: Final = 3
"""With two failing engines, either requests or engines may be the cause."""

SHARE: Final = 0.75
"""More than this share of the engines with traffic must fail: half a fleet was seen to break, and more may."""

FAILURES: Final = 3
FAILURES_WITHIN_CALLS: Final = 150
"""Window of newest calls with failures (2 %). One bad request leaves one failure on each engine it visits."""

NEWEST_WITHIN_CALLS: Final = 50
"""The newest failure must be within these: at 5 % it is 92 times in 100, and a recovered engine soon passes it."""

MEMORY_S: Final = 20.0
"""Older failures do not count, however few calls came since."""

HOLD_S: Final = 30.0
"""Time after the last sign before 500 is retried again."""

ON_INTERVAL_S: Final = 10.0
"""Minimum time for which it then is."""


def retry_statuses(
    resilience: ResilienceSpec,
    before: RetryMemory | None,
    *,
    traffic: PoolTraffic | None,
    engines: Mapping[EngineId, EngineDecision],
    now_s: float,
) -> RetryMemory:
    """Statuses to retry now, by the policy; in shadow mode, the initial ones."""
    if resilience.retries.statuses is not None:
        since_s = now_s if before is None else before.decided.since_s
        return RetryMemory(
            decided=RetryDecision(statuses=resilience.retries.statuses, reason="from the policy", since_s=since_s)
        )
    known = None if before is None else replace(before, decided=before.decided.shadow or before.decided)
    memory = _next(known, traffic=traffic, engines=engines, now_s=now_s)
    if not resilience.shadowed(None):
        return memory
    decision = memory.decided
    return replace(
        memory,
        decided=RetryDecision(
            statuses=ENGINE_FAILED,
            reason=f"shadow mode, 500 is always retried: {decision.reason}",
            since_s=decision.since_s,
            shadow=decision,
        ),
    )


def retries_due_s(decision: RetryDecision, now_s: float) -> float:
    """When to decide again without new evidence; infinite if time alone changes nothing."""
    known = decision.shadow or decision
    due_s = math.inf if known.sign_at_s is None else known.sign_at_s + HOLD_S
    return due_s if due_s > now_s else math.inf


def _next(
    before: RetryMemory | None,
    *,
    traffic: PoolTraffic | None,
    engines: Mapping[EngineId, EngineDecision],
    now_s: float,
) -> RetryMemory:
    if before is None:
        before = RetryMemory(decided=RetryDecision(statuses=ENGINE_FAILED, reason=_RETRIED, since_s=now_s))
    last_sign_s = before.decided.sign_at_s
    if traffic is None or now_s - traffic.heard_at_s > STALE_S:
        failed, sign = before.failed, ""
    else:
        failed = {name: _counted(before.failed.get(name), one, now_s) for name, one in traffic.engines.items()}
        sign = _sign(failed, traffic, engines, holding=last_sign_s is not None, now_s=now_s)
    if last_sign_s is not None:
        if sign or now_s < last_sign_s + HOLD_S:
            decided = replace(before.decided, sign_at_s=now_s) if sign else before.decided
            return replace(before, decided=decided, failed=failed)
        decided = RetryDecision(statuses=ENGINE_FAILED, reason=_RETRIED, since_s=now_s)
        return RetryMemory(decided=decided, moved_at_s=now_s, failed=failed)
    rested = before.moved_at_s is None or now_s >= before.moved_at_s + ON_INTERVAL_S
    if sign and rested:
        decided = RetryDecision(
            statuses=REPORTED_BEFORE_WORK,
            reason=f"500 not retried: {sign}, so suspect requests or the model; retried again {HOLD_S:g} s after "
            "the last sign",
            since_s=now_s,
            sign_at_s=now_s,
        )
        return RetryMemory(decided=decided, moved_at_s=now_s, failed=failed)
    return replace(before, failed=failed)


_RETRIED: Final = "500 retried: no sign that requests cause the failures"


def _counted(before: RecentFailures | None, now: EngineTraffic, now_s: float) -> RecentFailures:
    """The newest failures of an engine, by its number of answered calls at the time."""
    calls = now.succeeded + now.failed
    if before is None or calls < before.calls or now.failed < before.failed:
        before = RecentFailures(calls=0, failed=0, called_at_s=-math.inf)
    if calls == before.calls:
        return before
    newest = before.newest
    if now.failed > before.failed:
        fresh = (FailedCall(calls=calls, at_s=now_s),) * min(now.failed - before.failed, FAILURES)
        newest = (*newest, *fresh)[-FAILURES:]
    return RecentFailures(calls=calls, failed=now.failed, called_at_s=now_s, newest=newest)


def _sign(
    failed: Mapping[str, RecentFailures],
    traffic: PoolTraffic,
    engines: Mapping[EngineId, EngineDecision],
    *,
    holding: bool,
    now_s: float,
) -> str:
    """Evidence that requests cause the failures; empty without.

    Without retries a bad request fails once and not on four engines, so while ``holding`` one failure of an engine
    counts like several otherwise.
    """
    counts = list(_fails(failed, traffic, engines, at_least=1 if holding else FAILURES, now_s=now_s))
    failing = sum(counts)
    if len(counts) < MIN_ENGINES or failing <= SHARE * len(counts):
        return ""
    return f"{failing} of {len(counts)} engines with traffic fail at the same time"


def _fails(
    failed: Mapping[str, RecentFailures],
    traffic: PoolTraffic,
    engines: Mapping[EngineId, EngineDecision],
    *,
    at_least: int,
    now_s: float,
) -> Iterator[bool]:
    """For each engine that has traffic, and is in rotation or fails: whether it fails."""
    for key, decision in engines.items():
        one = failed.get(key.engine)
        if one is None:
            continue
        fails = _is_failing(one, at_least, now_s)
        busy = now_s - one.called_at_s <= MEMORY_S or traffic.engines[key.engine].in_flight != 0
        if fails or (busy and decision.health is Health.HEALTHY):
            yield fails


def _is_failing(one: RecentFailures, at_least: int, now_s: float) -> bool:
    if len(one.newest) < at_least:
        return False
    first, last = one.newest[-at_least], one.newest[-1]
    return (
        now_s - first.at_s <= MEMORY_S
        and one.calls - first.calls <= FAILURES_WITHIN_CALLS
        and one.calls - last.calls <= NEWEST_WITHIN_CALLS
    )
