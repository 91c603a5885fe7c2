"""One stream, between server and publisher."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

from xds_server.auth.connection_limit import host_of
from xds_server.model.snapshot import Resource, Snapshot
from xds_server.model.type_urls import SECRET
from xds_server.publish.held_names import HeldNames
from xds_server.publish.part_isolation import PartIsolation
from xds_server.publish.suspect_trials import SuspectTrials
from xds_server.publish.view_state import ViewState
from xds_server.xds import Event, NodeInfo, Stream, StreamError, TypeSync, XdsVariant, decode_request
from xds_server.xds.messages import SubscriptionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyState:
    """Full state of one connected proxy. Clocks are those of the calls."""

    node: NodeInfo
    view: Hashable
    mode: XdsVariant
    peer: str
    connected_at_s: float
    types: tuple[SubscriptionStatus, ...]


class ProxySync(NamedTuple):
    """Sync state of one connected proxy, by type."""

    node: NodeInfo
    view: Hashable
    types: tuple[TypeSync, ...]


class SessionPublisher(Protocol):
    """Publisher interface for sessions."""

    held_names: HeldNames

    def attach(self, session: "Session", node: NodeInfo, now_s: float) -> tuple["SessionView", Stream]:
        """View of ``node`` and a new stream on it; ``StreamError`` if it is not served."""

    def move(self, session: "Session", view: "SessionView", key: Hashable) -> "SessionView":
        """Move the session from ``view`` to the view of this key."""

    def detach(self, session: "Session", view: "SessionView", node: NodeInfo, reason: str) -> None:
        """Forget a session."""

    def offer(self, session: "Session", stream: Stream, view: "SessionView") -> None:
        """Update a stream to the latest snapshot of its view."""

    def encode(self, stream: Stream, now_s: float) -> bytes | None:
        """Next due response as bytes; ``None`` if nothing is due."""

    def take(self, session: "Session", view: "SessionView", stream: Stream, event: Event) -> None:
        """Handle one event of a stream."""

    def advance_trials(self, session: "Session", view: "SessionView", stream: Stream) -> None:
        """Begin the trials of suspects that are due."""

    def tick_later(self, session: "Session") -> None:
        """Tick this session from now on, until it has no timeouts."""


class Session:
    """One stream, between server and publisher."""

    __slots__ = (
        *("_closed", "_end", "_held_bytes", "_publisher", "_stream", "_view"),
        *("co_rejected_secrets", "host", "identities", "mode", "parts", "peer"),
        *("trial_rounds", "trials", "wake"),
    )

    def __init__(
        self,
        publisher: SessionPublisher,
        mode: XdsVariant,
        peer: str,
        wake: Callable[[], None],
        *,
        identities: tuple[str, ...],
        end: Callable[[StreamError], None],
    ) -> None:
        self.mode = mode
        self.peer = peer
        self.host = host_of(peer, identities)
        self.wake = wake
        self.identities = identities
        self.co_rejected_secrets: dict[str, Resource] = {}
        """Secrets rejected because of another secret, by the name of the other."""
        self.trials: dict[str, SuspectTrials[tuple[str, str]]] = {}
        """Suspects of NACKs that named none, by type, as (name, version)."""
        self.parts: PartIsolation | None = None
        """Accepted and refused parts of resources, once there are any."""
        self.trial_rounds: tuple[Snapshot | None, int] = (None, 0)
        """Desired snapshot, and number of NACKs of it that named no resource."""
        self._end = end
        self._publisher = publisher
        self._stream: Stream | None = None
        self._view: SessionView | None = None
        self._closed = False
        self._held_bytes = 0

    @property
    def node_id(self) -> str:
        """Node id of this proxy; empty until it sent its node."""
        return "" if self._stream is None else self._stream.node.id

    @property
    def view(self) -> Hashable | None:
        """View of this proxy; ``None`` until it sent its node."""
        return None if self._view is None else self._view.key

    @property
    def is_searching(self) -> bool:
        """Whether suspects of a NACK wait for their trial or its answer."""
        return bool(self.trials) or (self.parts is not None and self.parts.is_searching)

    def judge_parts(self) -> PartIsolation:
        """Accepted and refused parts of resources."""
        if self.parts is None:
            self.parts = PartIsolation()
        return self.parts

    def request(self, data: bytes, now_s: float) -> None:
        """Process one request; ``StreamError`` ends the stream."""
        request = decode_request(self.mode, data)
        if self._stream is None or self._view is None:
            if request.node is None or not request.node.id:
                raise StreamError("the first request must contain node.id")
            node = replace(request.node, identities=self.identities, host=self.host)
            self._view, self._stream = self._publisher.attach(self, node, now_s)
        elif request.node is not None and request.node.id not in ("", self._stream.node.id):
            # Authorization, status and counters use the id of the first request.
            raise StreamError("node.id must not change within a stream")
        self._publisher.tick_later(self)
        self._publisher.offer(self, self._stream, self._view)
        events = self._stream.request(request, now_s)
        self._hold(self._stream.held_bytes)
        for event in events:
            self._publisher.take(self, self._view, self._stream, event)

    def poll(self, now_s: float) -> bytes | None:
        """Next response to write, ``None`` if nothing is due. Write every result, in order."""
        if self._stream is None or self._view is None:
            return None
        self._publisher.tick_later(self)
        self._publisher.offer(self, self._stream, self._view)
        return self._publisher.encode(self._stream, now_s)

    @property
    def has_timeouts(self) -> bool:
        """Whether ``tick`` may do anything before the next request or poll."""
        return not self._closed and self._stream is not None and (self.is_searching or self._stream.has_timeouts)

    def tick(self, now_s: float) -> None:
        """Process timeouts."""
        if self._stream is None or self._view is None:
            return
        for event in self._stream.tick(now_s):
            self._publisher.take(self, self._view, self._stream, event)
        if self.is_searching:
            self._publisher.advance_trials(self, self._view, self._stream)
        if self._stream.is_waiting:
            self.wake()

    def reauthorize(self, view_of: Callable[[NodeInfo], Hashable]) -> None:
        """End the stream if its proxy is no longer authorized, or its visibility changed."""
        if self._stream is None or self._view is None:
            return
        try:
            key = view_of(self._stream.node)
        except StreamError as error:
            self._end(error)
        else:
            if key != self._view.key:
                self._end(StreamError("visibility of this proxy changed: reconnect"))

    def regroup(self, view_of: Callable[[NodeInfo], Hashable]) -> None:
        """Move to the proxy's current view; the stream continues."""
        if self._stream is None or self._view is None or self._closed:
            return
        try:
            key = view_of(self._stream.node)
        except StreamError as error:
            self._end(error)
            return
        if key != self._view.key:
            self._view = self._publisher.move(self, self._view, key)
            self.wake()

    def close(self, reason: str = "") -> None:
        """The stream has ended."""
        if self._stream is not None and self._view is not None and not self._closed:
            self._publisher.detach(self, self._view, self._stream.node, reason)
            self._hold(0)
        self._closed = True
        # Drop the references to the caller: a cycle would stay until the next garbage collection.
        self.wake, self._end = _ignore_wake, _ignore_end

    def _hold(self, size: int) -> None:
        """Count the memory for this proxy's names."""
        self._publisher.held_names.change(self.host, self._held_bytes, size)
        self._held_bytes = size

    def with_co_rejected(self, accepted: tuple[Resource, ...]) -> tuple[Resource, ...]:
        """Accepted resources, plus secrets that were rejected only because of one of these."""
        if not self.co_rejected_secrets:
            return accepted
        names = [item.name for item in accepted if item.type_url == SECRET]
        return (
            *accepted,
            *(self.co_rejected_secrets.pop(name) for name in names if name in self.co_rejected_secrets),
        )

    def acked_version(self, type_url: str, name: str) -> str | None:
        """Accepted version of a resource; ``None`` if not subscribed."""
        return None if self._stream is None else self._stream.acked_version(type_url, name)

    def served(self) -> Snapshot | None:
        """Snapshot served to this proxy, its own resources included; ``None`` until it sent its node."""
        if self._stream is None or self._view is None:
            return None
        self._publisher.offer(self, self._stream, self._view)
        return self._stream.snapshot

    def sync(self) -> ProxySync | None:
        """Sync state of this proxy; ``None`` until it sent its node."""
        if self._stream is None or self._view is None:
            return None
        self._publisher.offer(self, self._stream, self._view)
        return ProxySync(self._stream.node, self._view.key, self._stream.type_syncs())

    def state(self) -> ProxyState | None:
        """Full state of this proxy; ``None`` until it sent its node."""
        if self._stream is None or self._view is None:
            return None
        self._publisher.offer(self, self._stream, self._view)
        return ProxyState(
            node=self._stream.node,
            view=self._view.key,
            mode=self.mode,
            peer=self.peer,
            connected_at_s=self._stream.opened_at_s,
            types=self._stream.status(),
        )


def _ignore_wake() -> None:
    """No-op: the stream has ended."""


def _ignore_end(_: StreamError) -> None:
    """No-op: the stream has ended."""


SessionView: TypeAlias = ViewState[Session]
"""A view as the publisher serves it to sessions."""
