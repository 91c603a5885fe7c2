"""Connects the streams of all proxies to the snapshots of their views. I/O is in ``GrpcAdsServer``.

The server opens a ``Session`` per stream, passes incoming bytes, and polls it for bytes to write when woken and
writable. The application publishes the desired snapshot of each view, and provides the first one when a view's
first proxy connects.

Single-threaded; every call returns at once.
"""

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from xds_server.model.host_crowds import NodeHost
from xds_server.model.snapshot import OwnResources, Resource, Snapshot, content_of, same_versions
from xds_server.model.type_urls import SECRET
from xds_server.publish.connected_nodes import ConnectedNodes
from xds_server.publish.content_rejections import RecordedNack, content_key
from xds_server.publish.held_names import HeldNames
from xds_server.publish.nack_decision import NackDecision, NackReport, RollbackScope, decide_nack
from xds_server.publish.nack_policy import NackPolicy
from xds_server.publish.observer import Nack, NullObserver, PublisherObserver
from xds_server.publish.part_isolation import PartChoices, ResourceKey
from xds_server.publish.session import ProxyState, ProxySync, Session, SessionView
from xds_server.publish.suspect_trials import SuspectTrials
from xds_server.publish.view_registry import ViewRegistry
from xds_server.publish.view_state import ViewState
from xds_server.translate.upstream_tls import rejected_secret
from xds_server.xds import (
    Acked,
    Confirmed,
    ContentKey,
    DeniedPeerError,
    Event,
    Nacked,
    NodeInfo,
    ResponseCache,
    SharedContent,
    Stream,
    StreamError,
    StuckResponse,
    XdsVariant,
)

REVIEW_EVERY_S: Final = 10.0
"""Interval of forgetting unused accepted content."""

MAX_TRIALS: Final = 64
"""NACKs of one snapshot that may name no resource; more leave all its suspects rolled back."""

_NOTHING_OWN: Final[Mapping[str, OwnResources]] = MappingProxyType({})
_NOTHING_REJECTED: Final[frozenset[ContentKey]] = frozenset()


class Publisher:
    """All views and sessions, and their push counter.

    ``view_of``: view of a proxy. ``snapshot_for``: desired snapshot of a view. ``epoch`` distinguishes this
    process's nonces. ``identifier``: control plane name shown by Envoy. ``wall``: Unix time of refusals.
    """

    def __init__(
        self,
        *,
        view_of: Callable[[NodeInfo], Hashable],
        snapshot_for: Callable[[Hashable], Snapshot],
        observer: PublisherObserver | None = None,
        epoch: str = "",
        identifier: str = "",
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.nack_policy = NackPolicy()
        self.held_names = HeldNames()
        self._view_of = view_of
        self._snapshot_for = snapshot_for
        self._observer: PublisherObserver = observer or NullObserver()
        self._epoch = epoch
        self._encoder = ResponseCache(identifier)
        self._shared = SharedContent()
        self._founding = ViewRegistry(self.nack_policy.forget)
        self._views: Mapping[Hashable, SessionView] = self._founding.by_key
        self._own: Mapping[str, OwnResources] = _NOTHING_OWN
        self.connected = ConnectedNodes()
        self._sessions_of: dict[str, dict[Session, Hashable]] = {}
        self._sequence = 0
        self._wall = wall
        self._ticking: dict[Session, None] = {}
        self._review_at_s = float("-inf")

    # For the application

    @property
    def views(self) -> tuple[Hashable, ...]:
        """Views with connected proxies: those worth building."""
        return tuple(self._views)

    @property
    def nodes(self) -> Mapping[str, Hashable]:
        """View of each connected proxy by node id; the same object until a proxy connects or disconnects."""
        return self.connected.views

    @property
    def proxies_by_view(self) -> Mapping[Hashable, int]:
        """Number of proxies by view; cheaper than ``proxies``."""
        return {key: len(view.sessions) for key, view in self._views.items()}

    def speaks_for(self, node: str, identities: tuple[str, ...]) -> bool:
        """Whether a proxy with these identities is connected as ``node`` and may report for it."""
        return any(_same_peer(session.identities, identities) for session in self._sessions_of.get(node, ()))

    def reauthorize(self) -> None:
        """End the streams of proxies whose ``view_of`` changed."""
        for view in list(self._views.values()):
            for session in list(view.sessions):
                session.reauthorize(self._view_of)

    def regroup(self) -> None:
        """Move proxies to the view that ``view_of`` returns now."""
        for view in list(self._views.values()):
            for session in list(view.sessions):
                session.regroup(self._view_of)

    def publish(
        self,
        snapshots: Mapping[Hashable, Snapshot],
        now_s: float,
        own: Mapping[str, OwnResources] = _NOTHING_OWN,
    ) -> None:
        """Serve these snapshots; ignores views without proxies and keeps views not mentioned.

        ``own``, by node id, replaces the view's resources of the same type and name for that proxy. It replaces
        the ``own`` of the previous call: a missing proxy gets the view's resources again. Own resources have no
        fallback: use them for values that no proxy rejects (RTDS, parts of quotas).
        """
        self._sequence += 1
        for key, desired in snapshots.items():
            if (view := self._views.get(key)) and view.desired is not desired:
                self._serve(view, desired)
        self._set_own(own)
        if self.nack_policy.rejected_contents:
            self._review(now_s)

    def desired(self, view: Hashable) -> Snapshot | None:
        """Desired snapshot of a view; ``None`` without proxies."""
        served = self._views.get(view)
        return served.desired if served else None

    def effective(self, view: Hashable) -> Snapshot | None:
        """Snapshot for a new proxy of a view, of the same version as its first; ``None`` without proxies."""
        served = self._views.get(view)
        if served is None:
            return None
        first = next((state for session in served.sessions if (state := session.sync())), None)
        agent = "" if first is None else _agent(first.node)
        return served.snapshot_for((), agent, _NOTHING_REJECTED, self.nack_policy)

    def served_snapshots(self, view: Hashable) -> tuple[tuple[Snapshot, int], ...]:
        """Distinct snapshots served to proxies of a view, each with the number of proxies."""
        served = self._views.get(view)
        found: dict[int, tuple[Snapshot, int]] = {}
        for session in served.sessions if served else ():
            if snapshot := session.served():
                _, count = found.get(id(snapshot), (snapshot, 0))
                found[id(snapshot)] = (snapshot, count + 1)
        return tuple(found.values())

    def proxies(self, nodes: Collection[str] | None = None) -> tuple[ProxyState, ...]:
        """Connected proxies that sent their node, in order of connection; optionally only these ``nodes``."""
        if nodes is not None:
            found = (session for node in nodes for session in self._sessions_of.get(node, ()))
            return tuple(state for session in found if (state := session.state()))
        return tuple(
            state for view in self._views.values() for session in view.sessions if (state := session.state())
        )

    def sync_states(self) -> Iterator[ProxySync]:
        """Sync state of each connected proxy; much cheaper than ``proxies``."""
        return (one for view in self._views.values() for session in view.sessions if (one := session.sync()))

    def snapshot_served_to(self, node: str) -> Snapshot | None:
        """Snapshot served to a connected proxy, its own resources included; ``None`` if not connected."""
        for session in self._sessions_of.get(node, ()):
            return session.served()
        return None

    def acked_versions(self, type_url: str, name: str) -> tuple[tuple[Hashable, str], ...]:
        """View and accepted version (see ``Stream.held``) of each proxy subscribed to this resource."""
        return tuple(
            (key, version)
            for key, view in self._views.items()
            for session in view.sessions
            if (version := session.acked_version(type_url, name)) is not None
        )

    # For the server

    def connect(
        self,
        mode: XdsVariant,
        peer: str,
        wake: Callable[[], None],
        *,
        identities: tuple[str, ...] = (),
        end: Callable[[StreamError], None] = lambda _: None,
    ) -> Session:
        """Session for a new stream; ``wake`` is called when ``Session.poll`` may have output.

        ``identities``: proven by the peer's certificate. ``end`` is called to close the stream.
        """
        return Session(self, mode, peer, wake, identities=identities, end=end)

    def tick(self, now_s: float) -> None:
        """Process timeouts of all sessions; call about twice a second."""
        # Most have none: five thousand idle proxies cost nothing.
        for session in list(self._ticking):
            session.tick(now_s)
            if not session.has_timeouts:
                del self._ticking[session]
        if now_s >= self._review_at_s:
            self._review(now_s)

    # For sessions

    def tick_later(self, session: Session) -> None:
        """Tick this session from now on, until it has no timeouts."""
        self._ticking[session] = None

    def attach(self, session: Session, node: NodeInfo, now_s: float) -> tuple[SessionView, Stream]:
        """View of ``node`` and a new stream on it."""
        key = self._view_of(node)
        self._founding.admit(key, session.host)
        if not all(_same_peer(one.identities, session.identities) for one in self._sessions_of.get(node.id, ())):
            raise DeniedPeerError(f"node {node.id!r} is already connected with another certificate")
        view = self._served(key, session.host)
        view.sessions[session] = None
        self._sessions_of.setdefault(node.id, {})[session] = key
        self._count(node.id)
        stream = Stream(
            session.mode,
            node,
            self._snapshot(view, node),
            sequence=self._sequence,
            now_s=now_s,
            epoch=self._epoch,
            shared=self._shared,
        )
        self._observer.on_connect(node, session.mode)
        return view, stream

    def move(self, session: Session, view: SessionView, key: Hashable) -> SessionView:
        """Move the session from ``view`` to the view of this key."""
        # Leave first: a proxy counted in both views would share its limits with itself.
        view.sessions.pop(session, None)
        self._sessions_of[session.node_id][session] = key
        self._count(session.node_id)
        found = self._served(key, session.host, instead=view.desired)
        found.sessions[session] = None
        self._founding.retire(view)
        return found

    def detach(self, session: Session, view: SessionView, node: NodeInfo, reason: str) -> None:
        """Forget a session; a view without sessions is no longer built."""
        view.sessions.pop(session, None)
        if of_node := self._sessions_of.get(node.id):
            of_node.pop(session, None)
            self._count(node.id)
        self._observer.on_disconnect(node, session.mode, reason)
        self._founding.retire(view)

    def _count(self, node: str) -> None:
        """Count a node id by the view of its newest stream and the host of its oldest."""
        sessions = self._sessions_of[node]
        if not sessions:
            del self._sessions_of[node]
            self.connected.remove(node)
            return
        oldest = next(iter(sessions))
        self.connected.put(node, next(reversed(sessions.values())), NodeHost(oldest.host, bool(oldest.identities)))

    def _served(self, key: Hashable, host: str, instead: Snapshot | None = None) -> SessionView:
        """View of this key, which has or is about to have a proxy.

        ``instead`` is served if no snapshot can be built: a proxy keeps its content.
        """
        view = self._views.get(key)
        if view is None:
            desired = self._snapshot_for(key)
            if instead is not None and not desired.resources:
                desired = instead
            view = ViewState(key=key, founder=host, desired=desired)
            self._founding.add(view)
        return view

    def offer(self, session: Session, stream: Stream, view: SessionView) -> None:
        """Update a stream to the latest snapshot of its view, with the proxy's own resources."""
        rejected, parts = stream.rejected, session.parts
        if parts is None or not (rejected or parts.choices):
            stream.offer(self._snapshot(view, stream.node, rejected), self._sequence)
            return
        parts.desire(view.desired, partial(self.nack_policy.accepted, view.key))
        by_parts = {one for one in rejected if parts.knows(one[:2])}
        snapshot = self._snapshot(view, stream.node, rejected - by_parts, parts.choices)
        stream.offer(snapshot, self._sequence)
        for type_url, name, content in by_parts:
            item = snapshot.of(type_url).get(name)
            if item is not None and content_of(item.version) == content:
                # The choices leave out what this proxy refused: the search needs this again.
                stream.clear_nack(type_url, _pairs([item]))

    def _snapshot(
        self,
        view: SessionView,
        node: NodeInfo,
        rejected: Collection[ContentKey] = _NOTHING_REJECTED,
        choices: PartChoices = (),
    ) -> Snapshot:
        own = self._own.get(node.id, ())
        if not own and not (rejected or choices or self.nack_policy.rejected_contents):
            return view.desired
        return view.snapshot_for(own, _agent(node), rejected, self.nack_policy, choices)

    def encode(self, stream: Stream, now_s: float) -> bytes | None:
        """Next due response as bytes, shared by all streams that need the same."""
        response = stream.poll(now_s)
        if response is None:
            return None
        data = self._encoder.encode(response)
        self._observer.on_push(stream.node, response.type_url, len(data))
        return data

    def take(self, session: Session, view: SessionView, stream: Stream, event: Event) -> None:
        """Handle one event of a stream."""
        node = stream.node
        match event:
            case Acked():
                self._observer.on_ack(node, event.type_url, event.latency_s)
                self._accept(session, view, stream, session.with_co_rejected(event.resources))
                if trials := session.trials.get(event.type_url):
                    trials.remove(_pairs(event.resources))
            case Confirmed():
                self._accept(session, view, stream, event.resources)
            case Nacked():
                self._apply(session, view, stream, decide_nack(self._nack_report(view, stream, event)))
            case StuckResponse():
                self._observer.on_stuck(node, event)
                self._end_stuck_trial(session, stream, event)
            case _:
                self._observer.on_unknown_type(node, event.type_url)
        self.advance_trials(session, view, stream)
        if session.parts is not None and (settled := session.parts.take_settled(self.nack_policy.has_acked)):
            self._record_ack(view, settled)

    def _accept(
        self, session: Session, view: SessionView, stream: Stream, resources: tuple[Resource, ...]
    ) -> None:
        types = {item.type_url for item in self._own.get(stream.node.id, ())}
        if types and any(item.type_url in types for item in resources):
            # An own resource says nothing about its view, and must never be served to another proxy.
            resources = tuple(item for item in resources if item.type_url not in types)
        by_parts = [item for item in resources if item.parts is not None]
        if by_parts:
            session.judge_parts().acked(by_parts)
        if by_parts or stream.snapshot.rolled_back:
            resources = tuple(item for item in resources if item.parts is None and not _is_fallback(item, stream))
        self._record_ack(view, resources)

    def _record_ack(self, view: SessionView, resources: Collection[Resource]) -> None:
        if self.nack_policy.record_ack(view.key, resources):
            self._observer.on_refusals_cleared()
            self._serve_all()

    def _nack_report(self, view: SessionView, stream: Stream, event: Nacked) -> NackReport:
        """The NACK as input of the policy. A secret's NACK may be caused by an earlier secret."""
        suspects, co_rejected = event.suspects, None
        if event.type_url == SECRET and suspects:
            named = rejected_secret(suspects[0].name, event.reason)
            item = stream.snapshot.of(SECRET).get(named) or view.desired.of(SECRET).get(named)
            if item is not None and named != suspects[0].name:
                suspects, co_rejected = (item,), suspects[0]
        return NackReport(type_url=event.type_url, suspects=suspects, reason=event.reason, co_rejected=co_rejected)

    @staticmethod
    def _may_try_again(session: Session, view: SessionView) -> bool:
        """Whether suspects are worth another trial: a proxy may refuse them without end."""
        desired, rounds = session.trial_rounds
        rounds = rounds + 1 if desired is view.desired else 1
        session.trial_rounds = (view.desired, rounds)
        return rounds <= MAX_TRIALS

    def _apply(self, session: Session, view: SessionView, stream: Stream, decision: NackDecision) -> None:
        """Apply the decision on a NACK of this stream."""
        report, node = decision.report, stream.node
        if report.co_rejected is not None:
            (item,) = report.suspects
            session.co_rejected_secrets[item.name] = report.co_rejected
            stream.reattribute_nack(item, report.co_rejected)
        stream.clear_nack(report.type_url, _pairs(decision.resend))
        refused = self._judge_parts(session, view, decision)
        if refused is None:
            refused = self._judge_resources(session, view, stream, decision)
        held_more = self.nack_policy.record_nack(
            refused,
            RecordedNack(
                host=session.host,
                node=node.id,
                agent=_agent(node),
                at_unix_s=self._wall(),
                reason=report.reason,
            ),
        )
        scope = RollbackScope.SUSPECT if decision.tried else RollbackScope.PEER
        if any(map(self.nack_policy.is_held, refused)):
            scope = RollbackScope.EVERYONE
        self._observer.on_nack(
            Nack(
                node=node,
                type_url=report.type_url,
                resources=decision.at_fault or decision.tried,
                reason=report.reason,
                scope=scope,
            )
        )
        if held_more:
            self._serve_all()
        session.wake()

    def _judge_parts(
        self, session: Session, view: SessionView, decision: NackDecision
    ) -> Collection[ContentKey] | None:
        """Contents refused by a NACK of resources that are judged by parts; ``None`` for other resources."""
        items = decision.at_fault or decision.tried
        if not items or any(item.parts is None for item in items):
            return None
        accepted = partial(self.nack_policy.accepted, view.key)
        return session.judge_parts().nacked(items, view.desired, accepted)

    def _judge_resources(
        self, session: Session, view: SessionView, stream: Stream, decision: NackDecision
    ) -> Collection[ContentKey]:
        """Contents refused by a NACK; several suspects are tried again."""
        type_url, own = decision.report.type_url, self._own.get(stream.node.id, ())
        if decision.tried and self._may_try_again(session, view):
            self._try_again(session, decision.tried)
        elif type_url in session.trials:
            session.trials[type_url].remove(_pairs(decision.at_fault))
        return [content_key(item) for item in decision.at_fault if not any(item is mine for mine in own)]

    def _try_again(self, session: Session, suspects: Collection[Resource]) -> None:
        trials = session.trials.setdefault(next(iter(suspects)).type_url, SuspectTrials())
        trials.add(
            _pairs(suspects), _pairs([item for item in suspects if self.nack_policy.has_acked(content_key(item))])
        )

    def _end_stuck_trial(self, session: Session, stream: Stream, stuck: StuckResponse) -> None:
        """Treat suspects on trial in a response without answer as refused by this proxy."""
        if not (trials := session.trials.get(stuck.type_url)):
            return
        waiting = [item for item in stuck.resources if (item.name, item.version) in trials.on_trial]
        for item in waiting:
            stream.reject(item)
        if len(waiting) > 1:
            self._try_again(session, waiting)
        else:
            trials.remove(_pairs(waiting))

    def advance_trials(self, session: Session, view: SessionView, stream: Stream) -> None:
        """Let the next suspects be sent again to this proxy, once those on trial are settled."""
        if not session.is_searching:
            return
        self.offer(session, stream, view)
        for type_url, trials in list(session.trials.items()):
            while group := trials.advance(partial(_is_wanted, stream, type_url)):
                stream.clear_nack(type_url, group)
                self.offer(session, stream, view)
                session.wake()
            if not trials:
                del session.trials[type_url]
        while session.parts is not None:
            wanted = [item for key, _ in session.parts.choices if (item := _wanted(stream, key))]
            # A proxy that reconnected may hold exactly what is on trial: nothing is sent then.
            session.parts.acked(
                item for item in wanted if stream.acked_version(item.type_url, item.name) == item.version
            )
            if not session.parts.advance(wanted):
                return
            self.offer(session, stream, view)
            session.wake()

    def _serve(self, view: SessionView, desired: Snapshot) -> None:
        """Serve this snapshot to the proxies of a view."""
        view.serve(desired)
        for session in view.sessions:
            session.wake()

    def _serve_all(self) -> None:
        """Serve every view with refused content rolled back as it is now."""
        self._sequence += 1
        for view in self._views.values():
            self._serve(view, view.desired)

    def _set_own(self, own: Mapping[str, OwnResources]) -> None:
        """Set the own resources of proxies, and wake those with changes."""
        before, self._own = self._own, own
        if before is own:
            return
        for node in before.keys() | own.keys():
            if not same_versions(before.get(node, ()), own.get(node, ())):
                for session in self._sessions_of.get(node, ()):
                    session.wake()
        wanted = {id(item): item for item in own.values()}
        for view in self._views.values():
            view.keep_personal(wanted)

    def _review(self, now_s: float) -> None:
        self._review_at_s = now_s + REVIEW_EVERY_S
        if self.nack_policy.prune([view.desired for view in self._views.values()], now_s):
            self._serve_all()


def _same_peer(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two certificates belong to one peer: equal identities, or one in common."""
    return one == other or not set(one).isdisjoint(other)


def _agent(node: NodeInfo) -> str:
    """Name and version of the proxy: its refusals count for proxies of the same only."""
    return f"{node.user_agent_name} {node.user_agent_version}"


def _is_wanted(stream: Stream, type_url: str, one: tuple[str, str]) -> bool:
    return stream.is_wanted(type_url, *one)


def _wanted(stream: Stream, key: ResourceKey) -> Resource | None:
    """Resource that this proxy is subscribed to, and served now."""
    item = stream.snapshot.of(key[0]).get(key[1])
    return item if item and stream.acked_version(*key) is not None else None


def _pairs(items: Collection[Resource]) -> list[tuple[str, str]]:
    return [(item.name, item.version) for item in items]


def _is_fallback(item: Resource, stream: Stream) -> bool:
    """Whether a proxy accepted this in place of rejected content: not what is desired of it."""
    snapshot, name = stream.snapshot, item.name
    if name not in snapshot.rolled_back_of(item.type_url):
        return False
    # Envoy also acknowledges, unchecked, a secret that it rejected before.
    return item.type_url == SECRET or snapshot.of(item.type_url).get(name) == item
