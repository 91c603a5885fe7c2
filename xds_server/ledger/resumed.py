"""What became well again while no control plane looked: without it a ledger would end with what is long over.

The first round after a start tells what is not as it should be. What the last run left broken and this one finds
well is told here, once, so that the last event of every subject is how it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from xds_server.decide.changes.change import Change, ChangeKind, Subject
from xds_server.decide.decisions import Decisions, Health
from xds_server.fleet import EngineId
from xds_server.ledger.event import Event

AT_REST: Final[Mapping[ChangeKind, str]] = MappingProxyType(
    {
        ChangeKind.HEALTH: Health.HEALTHY.value,
        ChangeKind.KEPT: "free to leave",
        ChangeKind.CUT: "not cut",
        ChangeKind.STRAGGLER: "in step",
        ChangeKind.BREAKER: "closed",
        ChangeKind.DEMAND: "room",
        ChangeKind.LADDER: "level 0",
        ChangeKind.ZONE: "there",
    }
)
"""How each kind of transition says that nothing is out of the ordinary, which no first round tells."""

REASON: Final = "found so at the start of the control plane"


def resumed(events: Iterable[Event], found: Iterable[Change], decisions: Decisions) -> Iterator[Change]:
    """The transitions to rest between the last run, whose ``events`` come oldest first, and the first round.

    ``found`` is what that round tells by itself. Of engines and pools that are no more nothing is told.
    """
    told = {(one.kind, one.subject) for one in found}
    last = {(event.kind, event.subject): event for event in events if event.kind in AT_REST}
    for (kind, subject), event in last.items():
        if event.after != AT_REST[kind] and (kind, subject) not in told and _is_there(subject, decisions):
            yield Change(
                kind=kind,
                subject=subject,
                before=event.after,
                after=AT_REST[kind],
                reason=_reason(subject, decisions),
            )


def _is_there(subject: Subject, decisions: Decisions) -> bool:
    if subject.engine:
        return EngineId(subject.pool, subject.engine) in decisions.engines
    return subject.pool in decisions.pools


def _reason(subject: Subject, decisions: Decisions) -> str:
    now = decisions.engines.get(EngineId(subject.pool, subject.engine))
    return REASON if now is None or not now.reason else f"{REASON}: {now.reason}"
