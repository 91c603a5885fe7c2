"""The ledger: records each transition of the decisions as an event, in memory and optionally in a file."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import structlog

from policies.model import PolicySet
from xds_server.decide.decisions import AdmissionDecision, BreakerPhase, Decisions, Health
from xds_server.decide.diff.change import Change, ChangeKind, Subject
from xds_server.decide.diff.decision_diff import ceiling_moved, diff_decisions
from xds_server.ledger.event import ClockReading, Event, as_line, event_of, from_line, is_later
from xds_server.ledger.event_store import EventStore
from xds_server.ledger.jsonl_writer import JsonlWriter
from xds_server.ledger.shadow import ShadowTotals
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.token_bucket import RateLimit, TokenBucket, take_token

MissingSignals = Mapping[str, frozenset[str]]
"""By signal, the connected proxies that do not send it."""

NO_MISSING_SIGNALS: Final[MissingSignals] = MappingProxyType({})


TELEMETRY_EVENTS: Final = RateLimit(burst=200.0, per_s=0.5)
"""Events of proxies' missing signals: a peer may connect as any node, and push others' events out."""


def missing_signal_changes(before: MissingSignals, now: MissingSignals) -> Iterator[Change]:
    """Proxies whose signal stopped, resumed, or that disconnected."""
    for signal in sorted(before.keys() | now.keys()):
        name = f"{signal.replace('_', ' ')}s"
        was, lost = before.get(signal, frozenset()), now.get(signal, frozenset())
        for node in sorted(was ^ lost):
            missing = node in lost
            yield Change(
                kind=ChangeKind.TELEMETRY,
                subject=Subject(proxy=node),
                before=f"{name} {'received' if missing else 'missing'}",
                after=f"{name} {'missing' if missing else 'received'}",
                reason=f"{node} is connected but sends no {name}: decisions do without them"
                if missing
                else f"{node} sends {name} again, or has disconnected",
                returns=f"the next {name}" if missing else "",
                alarm=missing,
            )


AT_REST: Final[Mapping[ChangeKind, str]] = MappingProxyType(
    {
        ChangeKind.HEALTH: Health.HEALTHY.value,
        ChangeKind.KEPT: "ejectable",
        ChangeKind.CUT: "off",
        ChangeKind.STRAGGLER: "normal",
        ChangeKind.BREAKER: "closed",
        ChangeKind.DEMAND: "below capacity",
        ChangeKind.LADDER: "level 0",
        ChangeKind.ZONE: "available",
    }
)
"""The normal value of each kind of transition; the first round does not report it."""

RECOVERED_REASON: Final = "found at startup of the control plane"


def recoveries_while_down(
    events: Iterable[Event], found: Iterable[Change], decisions: Decisions
) -> Iterator[Change]:
    """Transitions back to normal between the last run, whose ``events`` come oldest first, and the first round.

    ``found`` are the transitions of that round. Removed engines and pools are skipped.
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
    return RECOVERED_REASON if now is None or not now.reason else f"{RECOVERED_REASON}: {now.reason}"


MAX_BYTES: Final = 32 * 1024 * 1024
"""File size for rotation: some 60 000 events; the file has every flap."""

_LOGGED: Final = frozenset(
    {
        ChangeKind.HEALTH,
        ChangeKind.KEPT,
        ChangeKind.DEMAND,
        ChangeKind.LADDER,
        ChangeKind.ZONE,
        ChangeKind.ORDER,
        ChangeKind.STANDING,
        ChangeKind.POLICIES,
    }
)
"""Transitions to log; all are in the ledger, and telemetry logs its own."""

_AGAINST: Final = {
    (ChangeKind.HEALTH, Health.UNHEALTHY.value),
    (ChangeKind.KEPT, "kept in rotation"),
    (ChangeKind.CUT, "on"),
    (ChangeKind.BREAKER, BreakerPhase.OPEN.value),
}
"""Transitions of an engine for which its failed requests are evidence."""

FailedRequests = Callable[[str, str, float], tuple[str, ...]]
"""By pool, engine and monotonic time: IDs of the engine's newest failed requests."""

_log = structlog.get_logger()


class Ledger:
    """Records transitions as events. ``observe`` after each round; ``record`` for what happens in between."""

    def __init__(
        self,
        lines: JsonlWriter | None = None,
        *,
        book: EventStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._lines = lines
        self._clock = clock
        self._wall = wall
        self._decisions: Decisions | None = None
        self._lost: MissingSignals = NO_MISSING_SIGNALS
        self._told: dict[str, AdmissionDecision] = {}
        self._telemetry_events: TokenBucket | None = None
        self._policies: PolicySet | None = None
        self.book = book or EventStore()
        self.shadow = ShadowTotals()
        self.listener: Callable[[Event], None] | None = None
        """Called with each event."""

    def observe(
        self,
        policies: PolicySet,
        fleet: Fleet,
        decisions: Decisions,
        lost: MissingSignals = NO_MISSING_SIGNALS,
        *,
        failed_requests: FailedRequests = lambda _pool, _engine, _now_s: (),
    ) -> Sequence[Event]:
        """Record what changed since the last round; returns its events.

        ``lost`` is, by signal, the connected proxies that do not send it.
        """
        now = self._now()
        self._policies = policies
        found = [one for one in missing_signal_changes(self._lost, lost) if self._admits_telemetry(now.s)]
        self._lost = {signal: nodes for signal, nodes in lost.items() if nodes}
        before, self._decisions = self._decisions, decisions
        if before is not decisions:
            decided = diff_decisions(before, decisions, self._told)
            found.extend(decided)
            if before is None:
                found.extend(recoveries_while_down(self.book.since(0), decided, decisions))
            self._remember_ceilings(before, decisions)
        self.shadow.observe(fleet, decisions, now.s)
        return [
            self._add(_with_traffic(change, fleet), now, _evidence(change, failed_requests, now.s))
            for change in found
        ]

    def record(self, change: Change) -> Event:
        """Record something other than a decision, such as an order."""
        return self._add(change, self._now())

    def read(self, lines: Iterable[str]) -> int:
        """Take over events of earlier runs; returns the number of lines that are not events."""
        now, foreign = self._now(), 0
        for line in lines:
            event = from_line(line, now)
            if event is None:
                foreign += 1
            else:
                self.book.add(event)
        return foreign

    def _admits_telemetry(self, now_s: float) -> bool:
        """Whether one more event of a missing signal is recorded; the present state shows the others."""
        left = take_token(self._telemetry_events, TELEMETRY_EVENTS, now_s)
        if left is not None:
            self._telemetry_events = left
        return left is not None

    def _now(self) -> ClockReading:
        return ClockReading(s=self._clock(), unix_s=self._wall())

    def _remember_ceilings(self, before: Decisions | None, decisions: Decisions) -> None:
        for name, pool in decisions.pools.items():
            if before is not None and before.pools.get(name) is pool:
                continue
            told = self._told.get(name)
            if pool.admission is not None and (told is None or ceiling_moved(told, pool.admission)):
                self._told[name] = pool.admission
        for name in self._told.keys() - decisions.pools.keys():
            del self._told[name]

    def _add(self, change: Change, now: ClockReading, requests: tuple[str, ...] = ()) -> Event:
        event = self.book.add(replace(event_of(change, now, self._policies), requests=requests))
        if self.listener is not None:
            self.listener(event)
        if self._lines is not None:
            if self._lines.full:
                self._lines.rotate()
            self._lines.write(as_line(event))
        # The log has the 1st, 2nd, 4th, 8th ... repetition of a flapping transition.
        if event.kind in _LOGGED and not event.times & (event.times - 1):
            _say(event)
        return event


def ledger_from(lines: JsonlWriter | None, earlier: Sequence[str] = ()) -> Ledger:
    """A ledger that continues from the lines of earlier runs."""
    ledger = Ledger(lines)
    foreign = ledger.read(earlier)
    if foreign:
        later = sum(map(is_later, earlier))
        _log.warning(
            "ledger.skipped",
            lines=foreign,
            reason=f"{later} written by a later version; the others are incomplete or not ledger lines"
            if later
            else "incomplete, or not ledger lines",
        )
    return ledger


def _evidence(change: Change, failed_requests: FailedRequests, now_s: float) -> tuple[str, ...]:
    subject = change.subject
    if not subject.engine or (change.kind, change.after) not in _AGAINST:
        return ()
    return failed_requests(subject.pool, subject.engine, now_s)


def _with_traffic(change: Change, fleet: Fleet) -> Change:
    """The change with its engine's traffic numbers at this moment."""
    subject = change.subject
    if not subject.engine:
        return change
    pool = fleet.traffic.get(subject.pool)
    traffic = None if pool is None else pool.engines.get(subject.engine)
    if traffic is None:
        return change
    numbers = {
        "window_calls": float(traffic.window_calls),
        "window_failures": float(traffic.window_failures),
        "failures_in_a_row": float(traffic.failures_in_a_row),
        **({} if traffic.in_flight is None else {"in_flight": float(traffic.in_flight)}),
        **change.numbers,
    }
    return replace(change, numbers=numbers)


def _say(event: Event) -> None:
    log = _log.warning if event.alarm else _log.info
    subject = event.subject
    fields: dict[str, object] = {"reason": event.evidence}
    if event.before:
        fields["before"] = event.before
    if event.times > 1:
        fields["times"] = event.times
    if subject.engine:
        told = "health" if event.kind is ChangeKind.HEALTH else "now"
        key = str(EngineId(subject.pool, subject.engine))
        log(f"engine.{event.kind}", engine=key, **{told: event.after}, **fields)
    else:
        for name in ("pool", "zone", "proxy"):
            if getattr(subject, name):
                fields[name] = getattr(subject, name)
        log(f"decide.{event.kind}", now=event.after, **fields)
