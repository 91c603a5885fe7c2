"""One peer's ADS stream: all its types, and the order of changes.

Pass the peer's requests to ``request`` and the latest snapshot to ``offer``, then take responses from ``poll``
until it has none. There is no queue: responses are computed when they can be sent, so a slow peer skips
intermediate versions.

The order is make before break: clusters, listeners that endpoints may name, endpoints, then routes; removals of
listeners after the endpoints that stopped naming them, and removals of clusters only after the peer accepted the
routes that stopped using them. Endpoints never wait for a cluster's ACK, because Envoy sends it only after it has
them.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from xds_server.model.snapshot import Resource, Snapshot, SnapshotDiffs, content_of, resource, set_version
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, PUSH_ORDER, ROUTE, RUNTIME
from xds_server.wire.varint import delimited
from xds_server.xds.acked_resources import UNKNOWN
from xds_server.xds.full_content import FullContents
from xds_server.xds.messages import (
    ADD_WAIT_S,
    IMPLICIT_AFTER_S,
    MAX_TYPES,
    REMOVAL_WAIT_S,
    STUCK_AFTER_S,
    Acked,
    Event,
    NodeInfo,
    Request,
    Response,
    StreamError,
    StreamErrorKind,
    StuckResponse,
    SubscriptionStatus,
    TypeSync,
    UnknownType,
    XdsVariant,
)
from xds_server.xds.rejections import is_version
from xds_server.xds.type_state import SENT_SINGLY, DueContent, ServedType, TypeState

ContentKey = tuple[str, str, str]
"""Type URL, name and content hash."""

_BROKEN_LAST: Final = (CLUSTER, ENDPOINT)
_NAMERS_OF_CLUSTERS: Final = (LISTENER, ROUTE)
_NOTHING: Final[frozenset[ContentKey]] = frozenset()
_RANK: Final = {type_url: rank for rank, type_url in enumerate(PUSH_ORDER)}


class SharedContent:
    """What streams have in common: steps between snapshots, and what a peer without anything is sent."""

    def __init__(self) -> None:
        self.diffs = SnapshotDiffs()
        self.contents = FullContents()


class Stream:
    """Protocol state of one ADS stream of the peer ``node``, opened at ``now_s``.

    Times are seconds of one steady clock. ``epoch`` is the prefix of every nonce.
    """

    def __init__(
        self,
        mode: XdsVariant,
        node: NodeInfo,
        snapshot: Snapshot,
        *,
        sequence: int,
        now_s: float,
        epoch: str = "",
        shared: SharedContent | None = None,
    ) -> None:
        self.mode = mode
        self.node = node
        self.opened_at_s = now_s
        self.snapshot = snapshot
        self._sequence = sequence
        self._sent_in_sequence = 0
        self._epoch = epoch
        self._shared = shared or SharedContent()
        self._types: dict[str, TypeState] = {}
        self._order: tuple[TypeState, ...] = ()
        self._steps: tuple[tuple[TypeState, bool], ...] = ()
        self._removals_wait_since_s: float | None = None
        self._clusters_confirmed_at_s = now_s

    # In

    def offer(self, snapshot: Snapshot, sequence: int) -> None:
        """Serve ``snapshot``; ``sequence`` numbers its push and must increase."""
        if snapshot is self.snapshot:
            return
        before, self.snapshot = self.snapshot, snapshot
        if sequence > self._sequence:
            self._sequence, self._sent_in_sequence = sequence, 0
        for type_url, names in self._shared.diffs.between(before, snapshot).items():
            if state := self._types.get(type_url):
                state.touch(names, ServedType(snapshot.of(type_url), snapshot.rolled_back_of(type_url)))

    def request(self, request: Request, now_s: float) -> tuple[Event, ...]:
        """Process a request; returns its events. Resulting responses come from ``poll``."""
        if not request.type_url:
            raise StreamError("type_url is required on an aggregated stream")
        state = self._types.get(request.type_url)
        if state is None or (state.subscription.implicit and not state.in_flight.has_nonce(request.nonce)):
            return self._begin(request, now_s)
        event = state.take(request, self._served(state), now_s)
        if isinstance(event, Acked) and request.type_url == CLUSTER:
            self._clusters_confirmed_at_s = now_s
        return () if event is None else (event,)

    def reattribute_nack(self, item: Resource, unaffected: Resource) -> None:
        """Record a NACK of ``unaffected``, which the peer stores next to what it uses, as one of ``item``."""
        self._types[item.type_url].reattribute_nack(item, unaffected)

    def clear_nack(self, type_url: str, pairs: Iterable[tuple[str, str]]) -> None:
        """Allow sending these (name, version) again: another resource of the response may be at fault."""
        if state := self._types.get(type_url):
            state.clear_nack(pairs)

    def reject(self, item: Resource) -> None:
        """Record that the peer never answered this resource, as if it had rejected it."""
        if state := self._types.get(item.type_url):
            state.reject(item)

    @property
    def held_bytes(self) -> int:
        """Estimated memory for the names of this peer."""
        return sum(state.held_bytes for state in self._order)

    @property
    def is_waiting(self) -> bool:
        """Whether a response is due now or will be due later."""
        return any(state.dirty for state in self._order)

    def tick(self, now_s: float) -> tuple[Event, ...]:
        """Process timeouts: implicit subscriptions, and responses without answer."""
        self._subscribe_implicitly(now_s)
        return tuple(self._stuck(now_s))

    # Out

    def poll(self, now_s: float) -> Response | None:
        """The next response to send, ``None`` if none is due; it counts as sent at ``now_s``."""
        for state in self._order:
            if state.dirty or state.first_response_due:
                return self._next_due(now_s)
        self._removals_wait_since_s = None
        return None

    def _next_due(self, now_s: float) -> Response | None:
        for state, removals in self._steps:
            if (state.dirty or state.first_response_due) and not self._must_wait(state, now_s):
                response = self._due(state, now_s, removals=removals)
                if response is not None:
                    return response
        return self._due_removal(now_s)

    def due(self, now_s: float) -> list[Response]:
        """All responses to send now, in order."""
        return list(iter(lambda: self.poll(now_s), None))

    def status(self) -> tuple[SubscriptionStatus, ...]:
        """State of every subscribed type, in push order."""
        return tuple(state.status(self._served(state)) for state in self._order)

    def type_syncs(self) -> tuple[TypeSync, ...]:
        """Sync state of the peer for each type; much cheaper than ``status``."""
        return tuple(state.sync(self._served(state)) for state in self._order)

    def acked_version(self, type_url: str, name: str) -> str | None:
        """Accepted version of a resource; ``None`` if not subscribed.

        ``UNKNOWN`` before the first ACK, ``GONE`` once the peer knows that there is none.
        """
        state = self._types.get(type_url)
        if state is None or not state.subscription.wants(name):
            return None
        version = state.acked.version(name)
        return UNKNOWN if version is None else version

    @property
    def has_timeouts(self) -> bool:
        """Whether time alone may change the stream; without, ``tick`` does nothing until a request or response."""
        return (
            any(state.dirty or state.in_flight.responses or state.first_response_due for state in self._order)
            or next(self._missing(), None) is not None
        )

    def is_wanted(self, type_url: str, name: str, version: str) -> bool:
        """Whether the peer is subscribed to this resource, and the snapshot has this version."""
        return self.acked_version(type_url, name) is not None and is_version(
            self.snapshot.of(type_url).get(name), version
        )

    @property
    def rejected(self) -> frozenset[ContentKey]:
        """All content that the peer has rejected."""
        found = _NOTHING
        for state in self._order:
            if pairs := state.rejections.pairs:
                found |= {(state.type_url, name, content_of(version)) for name, version in pairs}
        return found

    # Start of a type

    def _begin(self, request: Request, now_s: float) -> tuple[Event, ...]:
        state = TypeState.new(request.type_url, self.mode, now_s, self._shared.contents)
        self._add(state)
        events: list[Event] = [] if request.type_url in _RANK else [UnknownType(type_url=request.type_url)]
        confirmed = state.begin(request, self.snapshot.of(request.type_url))
        if confirmed.resources:
            events.append(confirmed)
        return tuple(events)

    def _add(self, state: TypeState) -> None:
        if state.type_url not in self._types and len(self._types) >= MAX_TYPES:
            raise StreamError(f"more than {MAX_TYPES} resource types on one stream", StreamErrorKind.NAMES)
        self._types[state.type_url] = state
        last = len(PUSH_ORDER)
        self._order = tuple(sorted(self._types.values(), key=lambda item: _RANK.get(item.type_url, last)))
        self._steps = tuple(_steps(self._order))

    def _subscribe_implicitly(self, now_s: float) -> None:
        """Subscribe to clusters and listeners for an Envoy that lost its own subscription.

        Source: https://github.com/envoyproxy/envoy/issues/34334
        """
        if not self._types or self.node.user_agent_name != "envoy":
            return
        for type_url, since_s in self._missing():
            if now_s >= since_s + IMPLICIT_AFTER_S:
                state = TypeState.new(type_url, self.mode, now_s, self._shared.contents)
                self._add(state)
                state.begin_implicit(self.snapshot.of(type_url))

    def _missing(self) -> Iterator[tuple[str, float]]:
        """Types that an Envoy should have requested, each with the clock since when it is missing."""
        clusters = self._types.get(CLUSTER)
        if clusters is None:
            if self.snapshot.of(CLUSTER):
                yield CLUSTER, self.opened_at_s
        elif LISTENER not in self._types and not clusters.in_flight.responses and self.snapshot.of(LISTENER):
            # Envoy requests listeners when it has its clusters.
            yield LISTENER, self._clusters_confirmed_at_s

    # Due responses

    def _served(self, state: TypeState) -> ServedType:
        type_url = state.type_url
        resources = self.snapshot.of(type_url)
        if type_url == RUNTIME and self.mode is XdsVariant.SOTW:
            # At start Envoy waits 15 s for a missing layer, and SOTW cannot express that there is none.
            resources = {**{name: _empty_layer(name) for name in state.subscription.names}, **resources}
        return ServedType(resources, self.snapshot.rolled_back_of(type_url))

    def _must_wait(self, state: TypeState, now_s: float) -> bool:
        if state.in_flight.is_full:
            return True
        if state.type_url not in _NAMERS_OF_CLUSTERS:
            return False
        adding = self._adding_since_s()
        return adding is not None and now_s < adding + ADD_WAIT_S

    def _adding_since_s(self) -> float | None:
        """When clusters were last sent, while the peer has not accepted all of them."""
        clusters = self._types.get(CLUSTER)
        if clusters is None or not clusters.in_flight.responses:
            return None
        resources = self.snapshot.of(CLUSTER)
        unsent = any(name in resources and not clusters.expected(name) for name in clusters.dirty)
        if unsent or any(response.adds for response in clusters.in_flight.responses):
            return clusters.in_flight.responses[-1].sent_at_s
        return None

    def _due(self, state: TypeState, now_s: float, *, removals: bool) -> Response | None:
        due = state.due(self._served(state), removals=removals)
        return None if due is None else self._send(state, due, now_s)

    def _due_removal(self, now_s: float) -> Response | None:
        """The next removal of clusters, once no resource can name them."""
        waiting = [
            state
            for type_url in _BROKEN_LAST
            if (state := self._types.get(type_url)) and state.dirty and not self._must_wait(state, now_s)
        ]
        if not waiting:
            self._removals_wait_since_s = None
            return None
        if self._routes_unsettled(now_s):
            return None
        for state in waiting:
            if response := self._due(state, now_s, removals=True):
                return response
        return None

    def _routes_unsettled(self, now_s: float) -> bool:
        """Whether the peer may still route to clusters missing in the snapshot."""
        unanswered = False
        for type_url in _NAMERS_OF_CLUSTERS:
            state = self._types.get(type_url)
            if state is None:
                continue
            if state.rejections.current(*self._served(state)):
                return True  # It keeps its old routes while it rejects the new ones.
            unanswered = unanswered or state.is_unsettled
        if not unanswered:
            self._removals_wait_since_s = None
            return False
        if self._removals_wait_since_s is None:
            self._removals_wait_since_s = now_s
        return now_s < self._removals_wait_since_s + REMOVAL_WAIT_S

    def _send(self, state: TypeState, due: DueContent, now_s: float) -> Response:
        nonce = f"{self._epoch}{self._sequence:x}.{self._sent_in_sequence:x}"
        self._sent_in_sequence += 1
        resources = state.sent(due, nonce=nonce, now_s=now_s).resources
        if state.type_url == CLUSTER and (endpoints := self._types.get(ENDPOINT)):
            # Usually due anyway by version; not if they ran ahead of a cluster that had to wait.
            endpoints.send_again({self.snapshot.assignments.get(name, name) for name in due.changes})
        removed = () if due.whole else tuple(name for name, item in due.content.items() if item is None)
        return Response(
            mode=self.mode,
            type_url=state.type_url,
            nonce=nonce,
            version=due.whole.set_version if due.whole else self._version(state, resources),
            resources=resources,
            removed=removed if self.mode is XdsVariant.DELTA else (),
        )

    def _version(self, state: TypeState, resources: Collection[Resource]) -> str:
        """Version of a response. A reconnecting SOTW peer sends it for all its resources."""
        if self.mode is XdsVariant.SOTW and state.type_url in SENT_SINGLY:
            return state.version_in_place()
        if self.mode is XdsVariant.DELTA and len(resources) == 1:
            return next(iter(resources)).version
        return set_version(resources)

    # Timeouts

    def _stuck(self, now_s: float) -> Iterator[StuckResponse]:
        for state in self._order:
            if state.subscription.implicit:
                continue  # The peer need not answer what it did not request.
            for response in state.in_flight.newly_stuck(now_s, STUCK_AFTER_S):
                if state.type_url == CLUSTER and state.in_flight.try_again():
                    # A known Envoy fault: it sends neither ACK nor NACK, and any further response unblocks it.
                    state.forced.update(response.content)
                    state.dirty.update(response.content)
                yield StuckResponse(
                    type_url=state.type_url, resources=response.resources, waiting_s=now_s - response.sent_at_s
                )


def _steps(order: Collection[TypeState]) -> Iterator[tuple[TypeState, bool]]:
    """Order in which types may send, each with whether its removals may be sent then.

    Removals of listeners follow the endpoints that stopped naming them, before the routes; removals of clusters
    and endpoints have further conditions.
    """
    last = _RANK[ENDPOINT]
    for state in order:
        if _RANK.get(state.type_url, last + 1) <= last:
            yield state, state.type_url not in (*_BROKEN_LAST, LISTENER)
    for state in order:
        if state.type_url == LISTENER:
            yield state, True
    for state in order:
        if _RANK.get(state.type_url, last + 1) > last:
            yield state, True


def _empty_layer(name: str) -> Resource:
    """A Runtime message with a name and no values."""
    return resource(RUNTIME, name, delimited(1, name.encode()))
