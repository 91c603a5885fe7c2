"""What became different between two decisions: one line each for the log, none for what stayed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.report import Verdict
from xds_server.decide.decisions import Decisions, EngineDecision, PoolDecisions


class ChangeKind(StrEnum):
    """What changed."""

    HEALTH = "health"  # an engine takes new requests, or no longer does
    VERDICT = "verdict"  # what is said of it, without a change of health
    CEILING = "ceiling"
    ZONES = "zones"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One transition; ``subject`` is ``pool/engine``, or ``pool role`` or ``pool from zone``."""

    kind: ChangeKind
    subject: str
    before: str
    after: str
    reason: str


def changes(previous: Decisions | None, current: Decisions) -> tuple[Change, ...]:
    """The transitions from ``previous`` to ``current``; from None, everything that is not as declared."""
    found: list[Change] = []
    for name, pool in current.pools.items():
        before = previous.pools.get(name) if previous is not None else None
        if before is not pool:
            found.extend(_of_pool(name, before, pool))
    return tuple(found)


def _of_pool(name: str, before: PoolDecisions | None, now: PoolDecisions) -> Iterator[Change]:
    for key, decision in now.engines.items():
        known = None if before is None else before.engines.get(key)
        if known is not decision:
            yield from _of_engine(str(key), known, decision)
    for role, limit in now.ceilings.items():
        past = None if before is None else before.ceilings.get(role)
        was = "" if past is None else f"{past.interactive}/{past.batch}"
        text = f"{limit.interactive}/{limit.batch}"
        if was != text:
            yield Change(
                kind=ChangeKind.CEILING, subject=f"{name} {role}", before=was, after=text, reason=limit.reason
            )
    for zone, shares in now.zones.items():
        old = None if before is None else before.zones.get(zone)
        if old is None or old.weights != shares.weights:
            yield Change(
                kind=ChangeKind.ZONES,
                subject=f"{name} from {zone or 'anywhere'}",
                before="" if old is None else _split(old.weights),
                after=_split(shares.weights),
                reason=shares.reason,
            )


def _of_engine(subject: str, known: EngineDecision | None, now: EngineDecision) -> Iterator[Change]:
    if known is not None and known.health is not now.health:
        yield Change(
            kind=ChangeKind.HEALTH, subject=subject, before=known.health, after=now.health, reason=now.reason
        )
    elif _said(None if known is None else known.verdict) != _said(now.verdict):
        before = "" if known is None else _said(known.verdict)
        yield Change(
            kind=ChangeKind.VERDICT, subject=subject, before=before, after=_said(now.verdict), reason=now.reason
        )


def _said(verdict: Verdict | None) -> str:
    """The verdict for the log, where busy and ready are one: a loaded engine goes to and fro all day."""
    if verdict is None:
        return "unheard"
    return "producing" if verdict.good else verdict.value


def _split(weights: Mapping[str, int]) -> str:
    return ", ".join(f"{zone or 'no zone'} {weight}" for zone, weight in sorted(weights.items()))
