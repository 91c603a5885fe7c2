"""One peer's ADS stream: all its types, and the order in which changes may reach it.

Feed ``request`` with what the peer says and ``offer`` with the newest snapshot, then take responses from
``poll`` until it has none. There is no queue: what is due is worked out when somebody can send it, so a slow
peer skips what it was too slow for.

The order keeps traffic whole (make before break): clusters, listeners that endpoints may name, endpoints, then
routes; removals of listeners after the endpoints that stopped naming them, and removals of clusters only when the
peer has confirmed the routes that stopped using them. Endpoints never wait for a cluster's acknowledgement,
because Envoy gives it only after it has them.
"""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from xds_server.model.snapshot import Resource, Snapshot, SnapshotDiffs, resource, set_version
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, PUSH_ORDER, ROUTE, RUNTIME
from xds_server.wire.varint import delimited
from xds_server.xds.messages import (
    ADD_WAIT_S,
    IMPLICIT_AFTER_S,
    MAX_TYPES,
    MAX_UNACKED,
    REMOVAL_WAIT_S,
    STUCK_AFTER_S,
    Acked,
    DeltaRequest,
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
    reason_tail,
)
from xds_server.xds.subscription import FULL_STATE, SENT_SINGLY, UNKNOWN, PendingResponse, Subscription

_BROKEN_LAST: Final = (CLUSTER, ENDPOINT)
_NAMERS_OF_CLUSTERS: Final = (LISTENER, ROUTE)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_RANK: Final = {type_url: rank for rank, type_url in enumerate(PUSH_ORDER)}


class Stream:
    """The protocol state of one ADS stream of the peer ``node``, opened at ``now_s``.

    Clocks are seconds of any steady clock, the same for all calls. ``epoch`` begins every nonce.
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
        changes: SnapshotDiffs | None = None,
    ) -> None:
        self.mode = mode
        self.node = node
        self.opened_at_s = now_s
        self.snapshot = snapshot
        self._sequence = sequence
        self._sent_in_sequence = 0
        self._epoch = epoch
        self._changes = changes or SnapshotDiffs()
        self._watches: dict[str, Subscription] = {}
        self._order: tuple[Subscription, ...] = ()
        self._steps: tuple[tuple[Subscription, bool], ...] = ()
        self._removals_wait_since_s: float | None = None
        self._clusters_confirmed_at_s = now_s

    # In

    def offer(self, snapshot: Snapshot, sequence: int) -> None:
        """Serve ``snapshot`` from now on; ``sequence`` numbers the push that brings it and only ever grows."""
        if snapshot is self.snapshot:
            return
        before, self.snapshot = self.snapshot, snapshot
        if sequence > self._sequence:
            self._sequence, self._sent_in_sequence = sequence, 0
        for type_url, names in self._changes.between(before, snapshot).items():
            if watch := self._watches.get(type_url):
                watch.touch(names, snapshot.of(type_url), snapshot.rolled_back_of(type_url))

    def request(self, request: Request, now_s: float) -> tuple[Event, ...]:
        """Take one request; return what it tells. Whatever it makes due comes out of ``poll``."""
        if not request.type_url:
            raise StreamError("type_url is required on an aggregated stream")
        watch = self._watches.get(request.type_url)
        if watch is None or (watch.implicit and not any(push.nonce == request.nonce for push in watch.pending)):
            return self._begin(request, now_s)
        resources = self._resources(watch)
        error = None if request.error is None else reason_tail(request.error)
        is_current = request.nonce == watch.last_nonce
        rolled_back = self.snapshot.rolled_back_of(watch.type_url)
        event = watch.answer(request.nonce, error, now_s, rolled_back) if request.nonce else None
        if isinstance(request, DeltaRequest):
            # Subscription changes count whatever the nonce: only SOTW may drop a request as stale.
            watch.subscribe(request.subscribe, resources)
            watch.unsubscribe(request.unsubscribe)
        elif is_current:
            watch.replace(request.names, resources)
        if isinstance(event, Acked) and request.type_url == CLUSTER:
            self._clusters_confirmed_at_s = now_s
        return () if event is None else (event,)

    def reattribute_nack(self, item: Resource, innocent: Resource) -> None:
        """Take a refusal of ``innocent``, which the peer keeps beside what it uses, for one of ``item``."""
        watch = self._watches[item.type_url]
        watch.rejected.pop(innocent.name, None)
        watch.held[innocent.name] = innocent.version
        if watch.held.get(item.name) == item.version:  # confirmed unseen
            watch.rejected[item.name], watch.held[item.name] = item.version, UNKNOWN
            watch.dirty.add(item.name)

    def clear_nack(self, type_url: str, names: Collection[str]) -> None:
        """Let refused names be sent again unchanged: something else in the same response was to blame."""
        if watch := self._watches.get(type_url):
            watch.clear_nack(names)

    @property
    def is_waiting(self) -> bool:
        """Whether something is due, or will be when time has passed."""
        return any(watch.dirty for watch in self._order)

    def tick(self, now_s: float) -> tuple[Event, ...]:
        """Look at what only time brings: peers that never asked, and responses that are never answered."""
        self._subscribe_unasked(now_s)
        return tuple(self._stuck(now_s))

    # Out

    def poll(self, now_s: float) -> Response | None:
        """The next response to send, ``None`` when nothing is due; it counts as sent at ``now_s``."""
        for watch, removals in self._steps:
            if (watch.dirty or watch.first_reply_due) and not self._must_wait(watch, now_s):
                response = self._due(watch, now_s, removals=removals)
                if response is not None:
                    return response
        return self._due_removal(now_s)

    def due(self, now_s: float) -> list[Response]:
        """All responses to send now, in order."""
        return list(iter(lambda: self.poll(now_s), None))

    def status(self) -> tuple[SubscriptionStatus, ...]:
        """The state of every type the peer is subscribed to, in push order."""
        return tuple(
            watch.status(self._resources(watch), self.snapshot.rolled_back_of(watch.type_url))
            for watch in self._order
        )

    def type_syncs(self) -> tuple[TypeSync, ...]:
        """The same as far as it says how each type stands, and cheap."""
        return tuple(
            watch.sync(self._resources(watch), self.snapshot.rolled_back_of(watch.type_url))
            for watch in self._order
        )

    def acked_version(self, type_url: str, name: str) -> str | None:
        """The version of a resource that the peer has confirmed; ``None`` when it does not want the resource.

        ``UNKNOWN`` while it has confirmed none, ``GONE`` once it knows that there is none.
        """
        watch = self._watches.get(type_url)
        return watch.held.get(name, UNKNOWN) if watch is not None and watch.wants(name) else None

    def rejected_versions(self, type_url: str) -> Mapping[str, str]:
        """The versions of a type that the peer has refused and is not sent again, by name."""
        watch = self._watches.get(type_url)
        return _NOTHING if watch is None else watch.rejected

    # How a type begins

    def _begin(self, request: Request, now_s: float) -> tuple[Event, ...]:
        watch = Subscription(type_url=request.type_url, mode=self.mode, changed_at_s=now_s)
        # A runtime layer we do not have is asked for by name, and ``_resources`` needs the name.
        self._add(watch)
        events: list[Event] = [] if request.type_url in _RANK else [UnknownType(type_url=request.type_url)]
        if isinstance(request, DeltaRequest):
            confirmed = watch.begin_delta(
                request.subscribe, request.initial_versions, self.snapshot.of(request.type_url)
            )
            watch.unsubscribe(request.unsubscribe)
        else:
            confirmed = watch.begin_sotw(request.names, request.version, self.snapshot.of(request.type_url))
        if confirmed.resources:
            events.append(confirmed)
        return tuple(events)

    def _add(self, watch: Subscription) -> None:
        if watch.type_url not in self._watches and len(self._watches) >= MAX_TYPES:
            raise StreamError(f"more than {MAX_TYPES} resource types on one stream", StreamErrorKind.NAMES)
        self._watches[watch.type_url] = watch
        last = len(PUSH_ORDER)
        self._order = tuple(sorted(self._watches.values(), key=lambda item: _RANK.get(item.type_url, last)))
        self._steps = tuple(_steps(self._order))

    def _subscribe_unasked(self, now_s: float) -> None:
        """Treat clusters and listeners as asked for by an Envoy that lost its own subscription.

        Source: https://github.com/envoyproxy/envoy/issues/34334
        """
        if not self._watches or self.node.user_agent_name != "envoy":
            return
        for type_url, since_s in self._missing():
            if now_s >= since_s + IMPLICIT_AFTER_S:
                watch = Subscription(type_url=type_url, mode=self.mode, implicit=True, changed_at_s=now_s)
                self._add(watch)
                watch.wildcard = True
                watch.dirty = set(self.snapshot.of(type_url))

    def _missing(self) -> Iterator[tuple[str, float]]:
        """The types an Envoy should have asked for, each with the clock from which it is missed."""
        clusters = self._watches.get(CLUSTER)
        if clusters is None:
            if self.snapshot.of(CLUSTER):
                yield CLUSTER, self.opened_at_s
        elif LISTENER not in self._watches and not clusters.pending and self.snapshot.of(LISTENER):
            # Envoy asks for listeners when it has its clusters.
            yield LISTENER, self._clusters_confirmed_at_s

    # What is due

    def _resources(self, watch: Subscription) -> Mapping[str, Resource]:
        resources = self.snapshot.of(watch.type_url)
        if watch.type_url == RUNTIME and self.mode is XdsVariant.SOTW:
            # Envoy waits 15 s at start for a layer it is not sent, and SOTW cannot say that there is none.
            return {**{name: _empty_layer(name) for name in watch.names}, **resources}
        return resources

    def _must_wait(self, watch: Subscription, now_s: float) -> bool:
        # What goes out by itself is judged by itself only once the one before it was.
        most = 1 if watch.type_url in SENT_SINGLY else MAX_UNACKED
        if len(watch.pending) >= most and not watch.second_try:
            return True
        if watch.type_url not in _NAMERS_OF_CLUSTERS:
            return False
        adding = self._adding_since_s()
        return adding is not None and now_s < adding + ADD_WAIT_S

    def _adding_since_s(self) -> float | None:
        """When clusters were last sent, while the peer is short of any that it has not confirmed."""
        clusters = self._watches.get(CLUSTER)
        if clusters is None or not clusters.pending:
            return None
        resources = self.snapshot.of(CLUSTER)
        unsent = any(name in resources and not clusters.expected(name) for name in clusters.dirty)
        if unsent or any(push.adds for push in clusters.pending):
            return clusters.pending[-1].sent_at_s
        return None

    def _due(self, watch: Subscription, now_s: float, *, removals: bool) -> Response | None:
        resources = self._resources(watch)
        rolled_back = self.snapshot.rolled_back_of(watch.type_url)
        changes = watch.changes(resources, rolled_back, removals=removals)
        if alone := watch.alone(changes):
            changes = {alone: changes[alone]}
        if not changes and not self._is_owed(watch):
            return None
        if self.mode is XdsVariant.DELTA:
            content: Mapping[str, Resource | None] = changes
        else:
            state = watch.state(resources, changes, rolled_back)
            if state is None:
                return None
            if alone:
                state = {name: item for name, item in state.items() if name == alone}
            content = {**state, **{name: None for name, item in changes.items() if item is None}}
        return self._send(watch, content, changes, now_s)

    def _is_owed(self, watch: Subscription) -> bool:
        """Whether a first request must be answered although there is nothing to say."""
        owed, watch.first_reply_due = watch.first_reply_due, False
        waits = bool(watch.dirty)
        return owed and not waits and watch.type_url in FULL_STATE and not watch.held and not watch.implicit

    def _due_removal(self, now_s: float) -> Response | None:
        """The next removal of clusters, once nothing can name them any more."""
        waiting = [
            watch
            for type_url in _BROKEN_LAST
            if (watch := self._watches.get(type_url)) and watch.dirty and not self._must_wait(watch, now_s)
        ]
        if not waiting:
            self._removals_wait_since_s = None
            return None
        if self._routes_unsettled(now_s):
            return None
        for watch in waiting:
            if response := self._due(watch, now_s, removals=True):
                return response
        return None

    def _routes_unsettled(self, now_s: float) -> bool:
        """Whether the peer may still route to what the snapshot no longer has."""
        unanswered = False
        for type_url in _NAMERS_OF_CLUSTERS:
            watch = self._watches.get(type_url)
            if watch is None:
                continue
            if watch.status(self._resources(watch), self.snapshot.rolled_back_of(type_url)).refused:
                return True  # It keeps the routes it had, for as long as it refuses the new ones.
            unanswered = unanswered or bool(watch.pending or watch.dirty)
        if not unanswered:
            self._removals_wait_since_s = None
            return False
        if self._removals_wait_since_s is None:
            self._removals_wait_since_s = now_s
        return now_s < self._removals_wait_since_s + REMOVAL_WAIT_S

    def _send(
        self, watch: Subscription, content: Mapping[str, Resource | None], changes: Collection[str], now_s: float
    ) -> Response:
        nonce = f"{self._epoch}{self._sequence:x}.{self._sent_in_sequence:x}"
        self._sent_in_sequence += 1
        resources = tuple(item for item in content.values() if item is not None)
        watch.sent(
            PendingResponse(
                nonce=nonce,
                sequence=self._sequence,
                sent_at_s=now_s,
                content=content,
                resources=resources,
                adds=any(not (watch.held.get(item.name) and watch.expected(item.name)) for item in resources),
            ),
            changes,
        )
        watch.second_try = False
        if watch.type_url == CLUSTER and (endpoints := self._watches.get(ENDPOINT)):
            # Mostly due anyway, by their version. Not so when they ran ahead of a cluster that was held back.
            names = {self.snapshot.assignments.get(name, name) for name in changes}
            endpoints.send_again(names)
        removed = tuple(name for name, item in content.items() if item is None)
        return Response(
            mode=self.mode,
            type_url=watch.type_url,
            nonce=nonce,
            version=self._version(watch, resources),
            resources=resources,
            removed=removed if self.mode is XdsVariant.DELTA else (),
        )

    def _version(self, watch: Subscription, resources: Collection[Resource]) -> str:
        """What the peer is to call a response: SOTW peers say it of all they have, when they come again."""
        if self.mode is XdsVariant.SOTW and watch.type_url in SENT_SINGLY:
            return watch.version_in_place()
        if self.mode is XdsVariant.DELTA and len(resources) == 1:
            return next(iter(resources)).version
        return set_version(resources)

    # What only time brings

    def _stuck(self, now_s: float) -> Iterator[StuckResponse]:
        for watch in self._order:
            for push in watch.pending:
                waiting_s = now_s - push.sent_at_s
                if push.reported or watch.implicit or waiting_s < STUCK_AFTER_S:
                    continue
                push.reported = True
                if watch.type_url == CLUSTER and not watch.tried_again:
                    # A known Envoy fault: it neither accepts nor refuses, and any further response frees it.
                    watch.second_try = watch.tried_again = True
                    watch.forced.update(push.content)
                    watch.dirty.update(push.content)
                yield StuckResponse(type_url=watch.type_url, resources=push.resources, waiting_s=waiting_s)


def _steps(order: Collection[Subscription]) -> Iterator[tuple[Subscription, bool]]:
    """In which order types are looked at, each with whether removals of it may go out then.

    Those of listeners go out when the endpoints that stopped naming them have, and before the routes; those of
    clusters and endpoints have to wait for more than their turn.
    """
    last = _RANK[ENDPOINT]
    for watch in order:
        if _RANK.get(watch.type_url, last + 1) <= last:
            yield watch, watch.type_url not in (*_BROKEN_LAST, LISTENER)
    for watch in order:
        if watch.type_url == LISTENER:
            yield watch, True
    for watch in order:
        if _RANK.get(watch.type_url, last + 1) > last:
            yield watch, True


def _empty_layer(name: str) -> Resource:
    """A Runtime message that has a name and sets nothing."""
    return resource(RUNTIME, name, delimited(1, name.encode()))
