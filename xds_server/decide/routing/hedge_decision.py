"""Hedging: on while the pool has room, with a delay from the policy or from recent healthy calls.

On and off go out by RDS, so they are rare: off at once when the pool fills, on again only after a calm time.
Clusters follow the policy alone (with hedging enabled they do not eject for local failures, because Envoy counts a
hedge as one): a cluster that changed with every decision would lose its ejections each time.

If utilization is unknown, a delay from the policy stays in force: its author wanted hedges without measurements,
and ``maxPercent`` bounds them. A measured delay ends with the measurements; one restored from the last run holds
until proxies had time to reconnect and report.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from policies.resilience import Hedging
from xds_server.decide.decision_memory import HedgeMemory
from xds_server.decide.decisions import DegradationState, HedgeCause, HedgeDecision
from xds_server.model.memo import reuse_equal
from xds_server.model.pool_traffic import STALE_S, LatencyTail, PoolTraffic

MARGIN_POINTS: Final = 10.0
"""Points below the limit that utilization must reach before hedging starts again."""

CALM_S: Final = 5.0
"""How long it must stay there."""

ON_INTERVAL_S: Final = 10.0
"""Minimum time between two starts of hedging: at most two route changes in it."""

MIN_DELAY_S: Final = 0.05
"""Minimum measured delay: below, hedges double the load."""

MIN_CALLS: Final = 50
"""Calls needed to measure a delay: at the 95th percentile two or three of them are slower."""

DELAY_INTERVAL_S: Final = 30.0
DELAY_MOVE: Final = 0.2
"""Relative change of a measured delay that moves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delays:
    first_byte_s: float | None
    answer_s: float | None
    moved_at_s: float
    how: str
    restored_until_s: float | None = None


def hedge_decision(
    policy: Hedging,
    before: HedgeMemory | None,
    *,
    traffic: PoolTraffic | None,
    utilization: float | None,
    degradation: DegradationState | None,
    gated: bool,
    shadow: bool,
    now_s: float,
) -> HedgeMemory:
    """Whether to hedge now; the same ``decided`` as before if nothing changed.

    ``utilization`` as in ``AdmissionDecision`` (1.0: all slots in use), None if no proxy reports it. ``gated``:
    headers arrive with the first token, so that Envoy can hedge streams. In shadow mode it is off.
    """
    memory = _next(
        policy,
        None if before is None else replace(before, decided=before.decided.shadow or before.decided),
        traffic=traffic,
        full_percent=None if utilization is None else 100 * utilization,
        forbidden=degradation.reason if degradation is not None and degradation.hedging_off else "",
        gated=gated,
        now_s=now_s,
    )
    decision = memory.decided
    if shadow and policy.enabled:
        decision = HedgeDecision(
            on=False,
            cause=decision.cause,
            delay_s=None,
            reason=f"shadow mode, no hedging: {decision.reason}",
            since_s=decision.since_s,
            shadow=decision,
        )
    return replace(memory, decided=reuse_equal(None if before is None else before.decided, decision))


def hedge_due_s(memory: HedgeMemory, now_s: float) -> float:
    """When to decide again without new evidence; infinite if time alone changes nothing."""
    decision = memory.decided.shadow or memory.decided
    dues_s = [] if memory.restored_until_s is None else [memory.restored_until_s]
    if not decision.on and memory.calm_since_s is not None:
        dues_s.append(_begins_s(decision, memory.calm_since_s))
    return min((due_s for due_s in dues_s if due_s > now_s), default=math.inf)


def quantile(tail: LatencyTail, percent: float) -> float:
    """The time within which this share of healthy calls ended, inter- and extrapolated from ``LatencyTail``.

    Linear in -ln(1 - share): the tail of waiting times falls about exponentially, so a straight line in the share
    would put the 97th percentile too close to the 95th.
    """
    wanted, middle, near, far = (-math.log(1 - share / 100) for share in (percent, 50.0, 95.0, 99.0))
    if wanted <= near:
        return tail.p50_s + (tail.p95_s - tail.p50_s) * (wanted - middle) / (near - middle)
    return tail.p95_s + (tail.p99_s - tail.p95_s) * (wanted - near) / (far - near)


def _next(
    policy: Hedging,
    before: HedgeMemory | None,
    *,
    traffic: PoolTraffic | None,
    full_percent: float | None,
    forbidden: str,
    gated: bool,
    now_s: float,
) -> HedgeMemory:
    if not policy.enabled:
        none = _Delays(first_byte_s=None, answer_s=None, moved_at_s=0.0, how="")
        return _decided(before, none, HedgeCause.POLICY, "hedging.enabled is false", now_s)
    delays = _delays(policy, before, traffic, gated=gated, now_s=now_s)
    if delays.first_byte_s is None and delays.answer_s is None:
        return _decided(before, delays, HedgeCause.DELAY, delays.how, now_s)
    if forbidden:
        return _decided(before, delays, HedgeCause.LADDER, f"off at this degradation level: {forbidden}", now_s)
    limit_percent = policy.below_utilization_percent
    again_percent = max(limit_percent - MARGIN_POINTS, limit_percent / 2)
    resting = before is not None and not before.decided.on
    if full_percent is not None and full_percent >= (again_percent if resting else limit_percent):
        full = f"{full_percent:.0f} % of slots in use (limit {limit_percent:g} %)"
        return _decided(before, delays, HedgeCause.FULL, f"{full}, on again below {again_percent:g} %", now_s)
    if before is not None and not before.decided.on:
        calm_since_s = now_s if before.calm_since_s is None else before.calm_since_s
        if now_s < _begins_s(before.decided, calm_since_s):
            waits = f"on again after {CALM_S:g} s of calm"
            return _decided(before, delays, HedgeCause.WAITS, waits, now_s, calm_since_s=calm_since_s)
    known = "slot use unknown" if full_percent is None else f"{full_percent:.0f} % of slots in use"
    return _decided(before, delays, HedgeCause.ROOM, f"{known}; {delays.how}", now_s)


def _begins_s(before: HedgeDecision, calm_since_s: float) -> float:
    return max(calm_since_s + CALM_S, before.since_s + ON_INTERVAL_S)


def _delays(
    policy: Hedging, before: HedgeMemory | None, traffic: PoolTraffic | None, *, gated: bool, now_s: float
) -> _Delays:
    if policy.delay is not None:
        first_s = policy.delay if gated else None
        how = f"after {policy.delay:g} s, from the policy"
        return _Delays(first_byte_s=first_s, answer_s=policy.delay, moved_at_s=0.0, how=how)
    if traffic is None or now_s - traffic.heard_at_s > STALE_S:
        if before is not None and before.restored_until_s is not None and now_s < before.restored_until_s:
            return _Delays(
                first_byte_s=before.decided.delay_s if gated else None,
                answer_s=before.decided.answer_delay_s,
                moved_at_s=before.moved_at_s,
                how="delay restored from the last run",
                restored_until_s=before.restored_until_s,
            )
        how = "no delay set, and no call durations reported"
        return _Delays(first_byte_s=None, answer_s=None, moved_at_s=0.0, how=how)
    known_first_s = before.decided.delay_s if before is not None and gated else None
    known_answer_s = before.decided.answer_delay_s if before is not None else None
    moved_at_s = before.moved_at_s if before is not None else 0.0
    first_s = _fresh_s(traffic.first_byte, known_first_s, policy.delay_quantile_percent) if gated else None
    answer_s = _fresh_s(traffic.answer, known_answer_s, policy.delay_quantile_percent)
    due = now_s - moved_at_s >= DELAY_INTERVAL_S
    if _moved(known_first_s, first_s, due=due) or _moved(known_answer_s, answer_s, due=due):
        moved_at_s = now_s
    else:
        first_s, answer_s = known_first_s, known_answer_s
    if first_s is None and answer_s is None:
        how = f"no delay set, and fewer than {MIN_CALLS} healthy calls to measure one"
        return _Delays(first_byte_s=None, answer_s=None, moved_at_s=0.0, how=how)
    told = (("first token", first_s), ("whole answer", answer_s))
    times = ", ".join(f"{delay_s:.3g} s for the {what}" for what, delay_s in told if delay_s is not None)
    how = f"after {times}, the {policy.delay_quantile_percent:g}th percentile"
    return _Delays(first_byte_s=first_s, answer_s=answer_s, moved_at_s=moved_at_s, how=how)


def _fresh_s(tail: LatencyTail | None, known_s: float | None, percent: float) -> float | None:
    """The quantile of the tail; the previous value if too few calls are left."""
    if tail is None or tail.calls < MIN_CALLS:
        return known_s
    return max(MIN_DELAY_S, quantile(tail, percent))


def _moved(known_s: float | None, fresh_s: float | None, *, due: bool) -> bool:
    if known_s is None or fresh_s is None:
        return fresh_s is not None
    return due and abs(fresh_s - known_s) > DELAY_MOVE * known_s


def _decided(
    before: HedgeMemory | None,
    delays: _Delays,
    cause: HedgeCause,
    reason: str,
    now_s: float,
    *,
    calm_since_s: float | None = None,
) -> HedgeMemory:
    """The decision; its reason changes only with what it explains, or its numbers would change every round."""
    on = cause is HedgeCause.ROOM
    last = None if before is None else before.decided
    decision = HedgeDecision(
        on=on,
        cause=cause,
        delay_s=delays.first_byte_s,
        answer_delay_s=delays.answer_s,
        reason=f"{'on' if on else 'off'}: {reason}",
        since_s=last.since_s if last is not None and last.on is on else now_s,
    )
    if last is not None and _explained(last) == _explained(decision):
        decision = replace(decision, reason=last.reason)
    return HedgeMemory(
        decided=decision,
        calm_since_s=calm_since_s,
        moved_at_s=delays.moved_at_s,
        restored_until_s=delays.restored_until_s,
    )


def _explained(decision: HedgeDecision) -> tuple[object, ...]:
    return (decision.cause, decision.delay_s, decision.answer_delay_s)
