"""Transitions between two decisions: one value each.

The only source of log lines, ledger and reports. Drifting numbers are not transitions: a ceiling counts when the
capacity under it changed, or when it moved by a tenth since it was last recorded (``recorded``).
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from xds_server.decide.decisions import (
    AdmissionDecision,
    Decisions,
    DegradationState,
    EngineDecision,
    Health,
    HedgeDecision,
    PoolDecisions,
    RetryDecision,
    TimeLimits,
)
from xds_server.decide.diff import policy_fields
from xds_server.decide.diff.change import (
    Change,
    ChangeKind,
    Subject,
)
from xds_server.decide.diff.engine_diff import circuit_breaker_changes, engine_changes, straggler_changes
from xds_server.model.fleet import EngineId

CEILING_MOVE_SHARE: Final = 0.1
"""Share by which a ceiling must move since it was last recorded, at unchanged capacity."""

ZONE_LOST_SHARE: Final = 0.5
"""More than this share of a zone's engines must be ejected for the zone itself to be news."""

_NO_ENGINES: Final[Mapping[EngineId, EngineDecision]] = MappingProxyType({})
_NOTHING_LOGGED: Final[Mapping[str, AdmissionDecision]] = MappingProxyType({})


def diff_decisions(
    previous: Decisions | None, current: Decisions, recorded: Mapping[str, AdmissionDecision] = _NOTHING_LOGGED
) -> tuple[Change, ...]:
    """The transitions from ``previous`` to ``current``; from None, everything that deviates from the declaration.

    ``recorded`` has, by pool, the admission whose ceiling was last recorded; absent means the previous one.
    """
    found: list[Change] = []
    for name, pool in current.pools.items():
        before = previous.pools.get(name) if previous is not None else None
        if before is not pool:
            found.extend(_pool_changes(name, before, pool, recorded.get(name)))
    return tuple(found)


def _pool_changes(
    name: str, before: PoolDecisions | None, now: PoolDecisions, recorded: AdmissionDecision | None
) -> Iterator[Change]:
    known = _NO_ENGINES if before is None else before.engines
    fresh = [(key, known.get(key), one) for key, one in now.engines.items() if known.get(key) is not one]
    # Zones first: losing half a zone is the headline, its engines are the details.
    if any(past is None or past.health is not one.health for _, past, one in fresh):
        yield from _zone_events(name, before, now)
    for key, decision_before, decision in fresh:
        yield from engine_changes(_engine(key), decision_before, decision)
    for key, breaker in now.breakers.items():
        past = None if before is None else before.breakers.get(key)
        if past is not breaker:
            yield from circuit_breaker_changes(_engine(key), past, breaker)
    for key, slow in now.slow.items():
        was_slow = before is not None and before.slow.get(key, False)
        yield from straggler_changes(_engine(key), was_slow, slow)
    pool = Subject(pool=name)
    if now.admission is None:
        yield from _ceilings_by_role(name, before, now)
    else:
        was = None if before is None else before.admission
        yield from _admission(pool, recorded or was, now.admission)
        yield from _demand(pool, was, now.admission)
    yield from _ladder(pool, None if before is None else before.degradation, now.degradation)
    yield from _hedging(pool, None if before is None else before.hedge, now.hedge)
    yield from _retries(pool, None if before is None else before.retries, now.retries)
    yield from _limits(pool, None if before is None else before.limits, now.limits)
    yield from _zone_shares(name, before, now)


def _engine(key: EngineId) -> Subject:
    return Subject(pool=key.pool, engine=key.engine)


def _zone_events(name: str, before: PoolDecisions | None, now: PoolDecisions) -> Iterator[Change]:
    lost_before = {} if before is None else _lost(before)
    lost = _lost(now)
    for zone in sorted(lost_before.keys() | lost.keys()):
        out, of = lost.get(zone, (0, 0))
        was_out, was_of = lost_before.get(zone, (0, 0))
        if (out > ZONE_LOST_SHARE * of) is (was_out > ZONE_LOST_SHARE * was_of):
            continue
        gone = out > ZONE_LOST_SHARE * of
        yield Change(
            kind=ChangeKind.ZONE,
            subject=Subject(pool=name, zone=zone),
            before="lost" if not gone else "" if before is None else "available",
            after="lost" if gone else "available",
            reason=f"{out} of its {of} engines are ejected",
            rule=policy_fields.FLOOR,
            returns="at least half of its engines return to rotation" if gone else "",
            alarm=gone,
            numbers={"out": out, "engines": of},
        )


def _lost(pool: PoolDecisions) -> dict[str, tuple[int, int]]:
    """Per named zone with more than one engine: engines ejected by evidence, and all engines."""
    counts: dict[str, tuple[int, int]] = {}
    for engine in pool.declared:
        decision = pool.engines.get(engine.id)
        if engine.zone and decision is not None:
            out, of = counts.get(engine.zone, (0, 0))
            counts[engine.zone] = (out + (decision.health is Health.UNHEALTHY), of + 1)
    return {zone: (out, of) for zone, (out, of) in counts.items() if of > 1}


def _ceilings_by_role(name: str, before: PoolDecisions | None, now: PoolDecisions) -> Iterator[Change]:
    for role, limit in now.ceilings.items():
        past = None if before is None else before.ceilings.get(role)
        was = "" if past is None else f"{past.interactive}/{past.batch}"
        text = f"{limit.interactive}/{limit.batch}"
        if was != text:
            yield Change(
                kind=ChangeKind.CEILING,
                subject=Subject(pool=name, role=role),
                before=was,
                after=text,
                reason=limit.reason,
                rule=policy_fields.MAX_WAIT,
            )


def _admission(subject: Subject, recorded: AdmissionDecision | None, now: AdmissionDecision) -> Iterator[Change]:
    if recorded is not None and not ceiling_moved(recorded, now):
        return
    yield Change(
        kind=ChangeKind.CEILING,
        subject=subject,
        before="" if recorded is None else str(recorded.total + recorded.held),
        after=str(now.total + now.held),
        reason=now.reason if now.in_force else f"shadow mode, not enforced: {now.reason}",
        rule=policy_fields.MAX_WAIT,
        numbers={
            "total": now.total,
            "held": now.held,
            "slots": now.slots,
            "wait_s": now.wait_s,
            **({} if now.pressure is None else {"pressure": now.pressure}),
        },
    )


def ceiling_moved(recorded: AdmissionDecision, now: AdmissionDecision) -> bool:
    """Whether a ceiling should be recorded again."""
    if recorded.in_force is not now.in_force:
        return True
    of, moved = recorded.total + recorded.held, abs(now.total + now.held - recorded.total - recorded.held)
    # A step by one engine's slots comes from a decision; less is measurement noise.
    step = min((one.slots for one in now.capacities.values()), default=1.0)
    return moved > CEILING_MOVE_SHARE * of or (
        moved > 0 and abs(recorded.slots - now.slots) >= max(1.0, 0.9 * step)
    )


def _demand(subject: Subject, was: AdmissionDecision | None, now: AdmissionDecision) -> Iterator[Change]:
    """Not an alarm: requests wait first. The degradation level shows lasting overload."""
    over_before = was is not None and was.crowded
    over = now.crowded
    if over is over_before:
        return
    asked = "unknown" if now.pressure is None else f"{100 * now.pressure:.0f} %"
    yield Change(
        kind=ChangeKind.DEMAND,
        subject=subject,
        before="above capacity" if over_before else "below capacity",
        after="above capacity" if over else "below capacity",
        reason=f"demand relative to capacity: {asked}",
        rule=policy_fields.MAX_WAIT,
        numbers={"slots": now.slots, **({} if now.pressure is None else {"pressure": now.pressure})},
    )


_LEVEL_ENDS: Final = {
    False: "pressure stays below the threshold for leaveAfter",
    True: "the order ends, or `switchgear restore POOL`",
}


def _ladder(subject: Subject, was: DegradationState | None, now: DegradationState | None) -> Iterator[Change]:
    level = 0 if now is None else now.level
    before = 0 if was is None else was.level
    if now is None or level == before:
        return
    yield Change(
        kind=ChangeKind.LADDER,
        subject=subject,
        before=f"level {before}",
        after=f"level {level}",
        reason=now.reason,
        rule=policy_fields.degradation_rule(max(level, before)),
        returns=_LEVEL_ENDS[bool(now.ordered)] if level else "",
        alarm=level > before,
        numbers={"level": level},
    )


def _hedging(subject: Subject, was: HedgeDecision | None, now: HedgeDecision | None) -> Iterator[Change]:
    if now is None or (False if was is None else was.on) is now.on:
        return
    yield Change(
        kind=ChangeKind.HEDGING,
        subject=subject,
        before="off" if now.on else "on",
        after="on" if now.on else "off",
        reason=now.reason,
        rule=policy_fields.HEDGE,
        numbers={} if now.delay_s is None else {"delay_s": now.delay_s},
    )


def _retries(subject: Subject, was: RetryDecision | None, now: RetryDecision | None) -> Iterator[Change]:
    if was is None or now is None or was.statuses == now.statuses:
        return
    yield Change(
        kind=ChangeKind.RETRIES,
        subject=subject,
        before=_statuses(was),
        after=_statuses(now),
        reason=now.reason,
        rule=policy_fields.RETRY_STATUSES,
        returns="" if now.sign_at_s is None else "30 s without a sign that requests cause the failures",
        alarm=now.sign_at_s is not None,
    )


def _statuses(decision: RetryDecision) -> str:
    return ", ".join(str(status) for status in decision.statuses) or "none"


def _limits(subject: Subject, was: TimeLimits | None, now: TimeLimits | None) -> Iterator[Change]:
    if was is None or now is None or _times(was) == _times(now):
        return
    yield Change(
        kind=ChangeKind.LIMITS,
        subject=subject,
        before=_times(was),
        after=_times(now),
        reason=now.reason,
        rule=policy_fields.ADAPTIVE_TIMEOUTS,
    )


def _times(limits: TimeLimits) -> str:
    named = (
        ("first token", limits.first_token_s),
        ("between tokens", limits.between_tokens_s),
        ("stream", limits.stream_total_s),
        ("try", limits.per_try_s),
        ("total", limits.total_s),
    )
    text = ", ".join(f"{name} {'off' if value is None else f'{value:g} s'}" for name, value in named)
    if limits.by_tokens is not None:
        text += f", {1000 * limits.by_tokens.per_token_s:.3g} ms a token"
    return text


def _zone_shares(name: str, before: PoolDecisions | None, now: PoolDecisions) -> Iterator[Change]:
    for zone, shares in now.zones.items():
        old = None if before is None else before.zones.get(zone)
        if old is None or old.weights != shares.weights:
            yield Change(
                kind=ChangeKind.ZONES,
                subject=Subject(pool=name, zone=f"from {zone or 'anywhere'}"),
                before="" if old is None else _split(old.weights),
                after=_split(shares.weights),
                reason=shares.reason,
                rule=policy_fields.ZONES,
            )


def _split(weights: Mapping[str, int]) -> str:
    total = sum(weights.values()) or 1
    return ", ".join(
        f"{zone or 'no zone'} {100 * weight / total:.3g} %" for zone, weight in sorted(weights.items())
    )
