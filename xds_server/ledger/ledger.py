"""The ledger: watches decisions go by and keeps each transition as an event, in memory and perhaps in a file."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from policies.model import PolicySet
from xds_server.decide.changes.change import Change, ChangeKind
from xds_server.decide.changes.changes import ceiling_is_news, changes
from xds_server.decide.decisions import Admission, Decisions, Health
from xds_server.decide.remembered import Phase
from xds_server.fleet import EngineId, Fleet
from xds_server.ledger.book import Book
from xds_server.ledger.event import Event, Now, as_line, event_of, from_line, is_later
from xds_server.ledger.lines import Lines
from xds_server.ledger.losses import NOTHING_LOST, Lost, loss_changes
from xds_server.ledger.resumed import resumed
from xds_server.ledger.shadow import ShadowBook

MAX_BYTES: Final = 32 * 1024 * 1024
"""Size at which the ledger's file is put aside: some 60 000 events; what goes to and fro is there each time."""

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
"""Transitions that somebody who reads the log waits for; all are in the ledger, and telemetry logs its own."""

_AGAINST: Final = {
    (ChangeKind.HEALTH, Health.UNHEALTHY.value),
    (ChangeKind.KEPT, "kept in"),
    (ChangeKind.CUT, "cut"),
    (ChangeKind.BREAKER, Phase.OPEN.value),
}
"""Transitions of an engine against which its failed requests are evidence."""

FailedRequests = Callable[[str, str, float], tuple[str, ...]]
"""Of a pool and an engine, now (monotonic): names of the newest requests that it failed."""

_log = structlog.get_logger()


class Ledger:
    """Every transition, as an event. ``observe`` after each round; ``tell`` for what happens between them."""

    def __init__(
        self,
        lines: Lines | None = None,
        *,
        book: Book | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._lines = lines
        self._clock = clock
        self._wall = wall
        self._decisions: Decisions | None = None
        self._lost: Lost = NOTHING_LOST
        self._told: dict[str, Admission] = {}
        self._policies: PolicySet | None = None
        self.book = book or Book()
        self.shadow = ShadowBook()
        self.onlooker: Callable[[Event], None] | None = None
        """Told of each event."""

    def observe(
        self,
        policies: PolicySet,
        fleet: Fleet,
        decisions: Decisions,
        lost: Lost = NOTHING_LOST,
        *,
        failed_requests: FailedRequests = lambda _pool, _engine, _now_s: (),
    ) -> Sequence[Event]:
        """Note what became different since the last round; the events of it.

        ``lost`` is by signal the connected proxies of which it is missing.
        """
        now = self._now()
        self._policies = policies
        found = list(loss_changes(self._lost, lost))
        self._lost = {signal: nodes for signal, nodes in lost.items() if nodes}
        before, self._decisions = self._decisions, decisions
        if before is not decisions:
            decided = changes(before, decisions, self._told)
            found.extend(decided)
            if before is None:
                found.extend(resumed(self.book.since(0), decided, decisions))
            self._remember_ceilings(decisions)
        self.shadow.observe(fleet, decisions, now.s)
        return [
            self._add(_with_traffic(change, fleet), now, _evidence(change, failed_requests, now.s))
            for change in found
        ]

    def tell(self, change: Change) -> Event:
        """Note something that is no decision: an order, say."""
        return self._add(change, self._now())

    def read(self, lines: Iterable[str]) -> int:
        """Take over events of earlier runs; how many lines were none."""
        now, foreign = self._now(), 0
        for line in lines:
            event = from_line(line, now)
            if event is None:
                foreign += 1
            else:
                self.book.add(event)
        return foreign

    def _now(self) -> Now:
        return Now(s=self._clock(), unix_s=self._wall())

    def _remember_ceilings(self, decisions: Decisions) -> None:
        for name, pool in decisions.pools.items():
            told = self._told.get(name)
            if pool.admission is not None and (told is None or ceiling_is_news(told, pool.admission)):
                self._told[name] = pool.admission
        for name in self._told.keys() - decisions.pools.keys():
            del self._told[name]

    def _add(self, change: Change, now: Now, requests: tuple[str, ...] = ()) -> Event:
        event = self.book.add(replace(event_of(change, now, self._policies), requests=requests))
        if self.onlooker is not None:
            self.onlooker(event)
        if self._lines is not None:
            if self._lines.full:
                self._lines.rotate()
            self._lines.write(as_line(event))
        # Of what goes to and fro the log has the 1st, 2nd, 4th, 8th ... time; people read it, and not the file.
        if event.kind in _LOGGED and not event.times & (event.times - 1):
            _say(event)
        return event


def ledger_from(lines: Lines | None, earlier: Sequence[str] = ()) -> Ledger:
    """A ledger that goes on from the lines of earlier runs."""
    ledger = Ledger(lines)
    foreign = ledger.read(earlier)
    if foreign:
        later = sum(map(is_later, earlier))
        _log.warning(
            "ledger.skipped",
            lines=foreign,
            reason=f"{later} of a later version, which still reads them; the others half-written, or of no ledger"
            if later
            else "half-written, or not of a ledger",
        )
    return ledger


def _evidence(change: Change, failed_requests: FailedRequests, now_s: float) -> tuple[str, ...]:
    subject = change.subject
    if not subject.engine or (change.kind, change.after) not in _AGAINST:
        return ()
    return failed_requests(subject.pool, subject.engine, now_s)


def _with_traffic(change: Change, fleet: Fleet) -> Change:
    """The change with what its engine's calls came to at this moment."""
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
