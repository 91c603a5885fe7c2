"""Follows changes to proxies: observes rounds, writes and answers, and emits a trace when a change has arrived.

It only observes, after proxies are served, and never delays a round: excess changes are not followed, and
counted. A change ends when every affected proxy has answered. An ejection ends when the engines are back in
rotation or after ``FOLLOWED_S``, since their last request may still be reported.

A change affects the proxies for which the content of a type differs. Runtime layers are ignored: they change
continuously and are per proxy.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from xds_server.decide.decisions import Decisions, Ejector, Health
from xds_server.decide.diff.change import ChangeKind
from xds_server.ledger.event import Event
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.snapshot import Snapshot
from xds_server.model.type_urls import MOVING
from xds_server.model.view import GRPC_ROLE, View
from xds_server.observe.eject_latency import detected_s
from xds_server.observe.tracing.propagation import Propagation, TracedChange, TracedPolicies, traced_nack
from xds_server.observe.tracing.spans import CHANGES, Span
from xds_server.observe.tracing.trace_builder import MOST_DECISIONS, trace_of, unattributed_nack
from xds_server.publish import Nack

FOLLOWED_S: Final = 30.0
"""Maximum time a change is followed."""

MOST_FOLLOWED: Final = 50
"""Changes followed at once."""

MOST_EVENTS: Final = 1_000
"""Events buffered until their round."""

_PLACE: Final = {ChangeKind(name): place for place, name in enumerate(CHANGES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRound:
    """A published round; ``news_s`` and ``offered_s``: when its inputs arrived (monotonic)."""

    decisions: Decisions
    fleet: Fleet
    stages_s: Mapping[str, float]
    snapshots: Mapping[View, Snapshot]
    nodes: Mapping[str, View]
    policies: TracedPolicies
    news_s: float | None = None
    offered_s: float | None = None


class ChangeTracer:
    """See the module. ``done`` receives each trace; ``skipped`` is called for each change not followed."""

    def __init__(
        self,
        done: Callable[[Span], None],
        skipped: Callable[[], None] = lambda: None,
        *,
        began_at_s: Callable[[str, str], float | None] = lambda _pool, _engine: None,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._done = done
        self._skipped = skipped
        self._began_at_s = began_at_s
        self._clock = clock
        self._wall_ns = wall_ns
        self._events: list[Event] = []
        self._open: list[TracedChange] = []
        self._snapshots: Mapping[View, Snapshot] = {}
        self._nodes: Mapping[str, View] = {}

    # -- inputs --------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """A state changed; the event belongs to the next round."""
        if len(self._events) < MOST_EVENTS:
            self._events.append(event)

    def on_round(self, made: PublishedRound) -> None:
        """A round was published."""
        now_s = self._clock()
        events, self._events = self._events, []
        before, self._snapshots = self._snapshots, made.snapshots
        nodes, self._nodes = self._nodes, made.nodes
        if self._open:
            self._settle(made.decisions, now_s)
        weighty = sorted(
            (event for event in events if event.kind in _PLACE),
            key=lambda event: (_PLACE[event.kind], event.number),
        )
        if not weighty:
            return
        if len(self._open) >= MOST_FOLLOWED:
            self._skipped()
            return
        others = [event for event in events if event.kind not in _PLACE]
        journey = self._begin(made, (*weighty, *others), now_s)
        journey.propagations = _spreads(before, nodes, made)
        self._open.append(journey)
        self._close_arrived(now_s)

    def on_push(self, node: str, type_url: str) -> None:
        """A response was written to a proxy."""
        for journey in self._open:
            if (spread := journey.propagations.get(type_url)) is not None:
                spread.on_push(node, self._clock())

    def on_ack(self, node: str, type_url: str, latency_s: float) -> None:
        """A proxy accepted (ACK) a response written ``latency_s`` ago."""
        if not self._open:
            return
        now_s = self._clock()
        for journey in self._open:
            if (spread := journey.propagations.get(type_url)) is not None:
                spread.on_ack(node, latency_s, now_s)
        self._close_arrived(now_s)

    def on_nack(self, nack: Nack) -> None:
        """A proxy refused (NACK) a response."""
        now_s = self._clock()
        # Not any(): the NACK applies to each change in flight to the proxy.
        hits = [
            spread.on_nack(nack, now_s)
            for journey in self._open
            if (spread := journey.propagations.get(nack.type_url)) is not None
        ]
        if not any(hits):
            self._done(unattributed_nack(nack.type_url, traced_nack(nack, now_s), self._unix(now_s)))
        self._close_arrived(now_s)

    def on_disconnect(self, node: str) -> None:
        """A proxy has disconnected."""
        for journey in self._open:
            for spread in journey.propagations.values():
                spread.on_disconnect(node)
        self._close_arrived(self._clock())

    def stop(self) -> None:
        """Emit the changes still followed, as far as they are."""
        for journey in list(self._open):
            self._close(journey, self._clock())

    # -- results -------------------------------------------------------------------------------------------

    def _begin(self, made: PublishedRound, events: tuple[Event, ...], now_s: float) -> TracedChange:
        first = events[0]
        key = EngineId(first.subject.pool, first.subject.engine)
        decision, engine = made.decisions.engines.get(key), made.fleet.engine(key)
        since_s = None if decision is None or engine is None else detected_s(decision, engine, now_s)
        return TracedChange(
            change=first.kind.value,
            cause=_cause(events, made),
            events=events[:MOST_DECISIONS],
            decided=len(events),
            policies=made.policies,
            published_s=now_s,
            stages_s=made.stages_s,
            propagations={},
            offered_s=made.offered_s if first.kind is ChangeKind.POLICIES else None,
            detected_s=None if since_s is None else now_s - since_s,
            news_s=made.news_s,
            leaving={
                (event.subject.pool, event.subject.engine)
                for event in events
                if event.kind is ChangeKind.HEALTH and event.after != Health.HEALTHY.value
            },
        )

    def _settle(self, decisions: Decisions, now_s: float) -> None:
        for journey in list(self._open):
            for pool, engine in list(journey.leaving):
                decision = decisions.engines.get(EngineId(pool, engine))
                if decision is None or decision.health is Health.HEALTHY:
                    self._left(journey, pool, engine)
            if now_s - journey.published_s >= FOLLOWED_S or not (journey.waiting or journey.leaving):
                self._close(journey, now_s)

    def _left(self, journey: TracedChange, pool: str, engine: str) -> None:
        journey.leaving.discard((pool, engine))
        began_s = self._began_at_s(pool, engine)
        if began_s is not None and began_s > journey.published_s:
            journey.last_request_s[pool, engine] = began_s

    def _close_arrived(self, now_s: float) -> None:
        for journey in list(self._open):
            if not (journey.waiting or journey.leaving):
                self._close(journey, now_s)

    def _close(self, journey: TracedChange, now_s: float) -> None:
        for pool, engine in sorted(journey.leaving):
            self._left(journey, pool, engine)
        self._open.remove(journey)
        self._done(trace_of(journey, self._unix(now_s)))

    def _unix(self, now_s: float) -> Callable[[float], int]:
        """Wall clock of one trace, based on the current time."""
        wall_ns = self._wall_ns()
        return lambda moment_s: wall_ns + round((moment_s - now_s) * 1e9)


def _spreads(
    before: Mapping[View, Snapshot], nodes: Mapping[str, View], made: PublishedRound
) -> dict[str, Propagation]:
    """By type, the proxies whose content changes in this round."""
    waiting: dict[str, dict[str, float | None]] = {}
    known: dict[tuple[View, View], tuple[str, ...]] = {}
    for node, view in made.nodes.items():
        was = nodes.get(node)
        # A new proxy gets everything, and gRPC clients request resources one by one: ignore both.
        if was is None or view.role == GRPC_ROLE:
            continue
        kinds = known.get((was, view))
        if kinds is None:
            kinds = known[was, view] = tuple(_different(before.get(was), made.snapshots.get(view)))
        for kind in kinds:
            waiting.setdefault(kind, {})[node] = None
    return {kind: Propagation(found) for kind, found in waiting.items()}


def _different(before: Snapshot | None, after: Snapshot | None) -> Iterable[str]:
    if before is None or after is None or before is after:
        return
    for kind in sorted(before.resources.keys() | after.resources.keys()):
        was, now = before.of(kind), after.of(kind)
        if was is now or kind in MOVING:
            continue
        if {name: one.version for name, one in was.items()} != {name: one.version for name, one in now.items()}:
            yield kind


def _cause(events: Iterable[Event], made: PublishedRound) -> str:
    """Cause of the round, as one word."""
    events = tuple(events)
    first = events[0]
    if first.kind is ChangeKind.POLICIES:
        return made.policies.source
    if first.kind is ChangeKind.LADDER:
        return "pressure"
    decision = made.decisions.engines.get(EngineId(first.subject.pool, first.subject.engine))
    if decision is not None and decision.ejector is not None:
        return "order" if decision.ejector is Ejector.OPERATOR else decision.ejector.value
    return "recovery"
