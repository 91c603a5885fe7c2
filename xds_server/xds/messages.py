"""Types of the xDS protocol: parsed requests, due responses, and events.

Source: https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from xds_server.model.snapshot import Resource

MAX_NAMES: Final = 10_000
"""Limit of names per type and stream, beyond as many as there are resources: a peer may repeat them all."""

MAX_NAMES_OF_REQUEST: Final = 65_536
"""Limit of names in one request: subscribed, unsubscribed, and with a version from an earlier stream."""

MAX_TYPES: Final = 32
"""Limit of resource types per stream; xDS defines some twenty."""

MAX_NAME_CHARACTERS: Final = 1024
"""Limit of a resource name; Envoy's own names are far shorter."""

NAME_BYTES: Final = 200
"""Memory for a name beyond its characters: a text, and its places in a set and a dictionary."""

MAX_REASON_CHARACTERS: Final = 2048
"""Characters kept of a NACK's reason: Envoy puts the cause at the end of a text that may be thousands long."""

MAX_UNACKED: Final = 2
"""Unanswered responses of one type: one being applied, one in transit. The next one waits, and is then the
latest.
"""

ADD_WAIT_S: Final = 5.0
"""Wait of routes for new clusters that they may name. Envoy accepts (ACK) a cluster once it is warm."""

REMOVAL_WAIT_S: Final = 15.0
"""Wait of a cluster's removal for the preceding route change: Envoy's default fetch timeout."""

STUCK_AFTER_S: Final = 20.0
"""Report an unanswered response after this time: longer than Envoy's default fetch timeout of 15 s."""

IMPLICIT_AFTER_S: Final = 3.0
"""An Envoy that has not requested clusters or listeners by then never will: https://github.com/envoyproxy/envoy/issues/34334."""


class StreamErrorKind(StrEnum):
    """Why a stream was closed: label of its counter."""

    GARBAGE = "garbage"  # not a discovery request
    NODE = "node"  # an invalid node
    NAMES = "names"  # too many, or too long
    PROTOCOL = "protocol"  # a request that violates the protocol
    DENIED = "refused"  # a peer without permission
    SILENT = "silent"  # no request in time, or one that does not end
    CONNECTION_LIMIT = "crowd"  # more streams than the server accepts
    HOST_LIMIT = "host"  # more streams or connections than one host may open
    SIZE = "size"  # a message with too many bytes or names
    MEMORY = "memory"  # the server is short of memory
    STALLED = "stalled"  # a response was not read in time
    HTTP2 = "http2"  # a connection that violates HTTP/2, or floods it


EXHAUSTED: Final = frozenset({StreamErrorKind.SIZE, StreamErrorKind.MEMORY})
"""Errors whose streams end with RESOURCE_EXHAUSTED."""


class StreamError(Exception):
    """A peer error that closes its stream; the text is sent to the peer."""

    def __init__(self, text: str, flaw: StreamErrorKind = StreamErrorKind.PROTOCOL) -> None:
        super().__init__(text)
        self.flaw = flaw


class XdsVariant(Enum):
    """Variants of the protocol: incremental, and state of the world."""

    DELTA = "delta"
    SOTW = "sotw"


class DeniedPeerError(StreamError):
    """A peer whose identity does not allow this node."""

    def __init__(self, text: str) -> None:
        super().__init__(text, StreamErrorKind.DENIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """The peer; ``metadata``: Envoy's ``node.metadata`` as plain Python.

    ``extensions``: names of the extensions built in; empty if not listed. ``identities``: URIs and DNS names
    proven by its certificate; ``host``: the address and identities by which limits count it. The rest is
    unverified.
    """

    id: str
    cluster: str = ""
    region: str = ""
    zone: str = ""
    user_agent_name: str = ""
    user_agent_version: str = ""
    metadata: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    extensions: frozenset[str] = frozenset()
    identities: tuple[str, ...] = ()
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRequest:
    """One DeltaDiscoveryRequest. ``error``: reason of a NACK, ``None`` for other requests."""

    type_url: str
    node: NodeInfo | None = None
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    nonce: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SotwRequest:
    """One DiscoveryRequest; ``names`` is the whole subscription. ``error`` as in ``DeltaRequest``."""

    type_url: str
    node: NodeInfo | None = None
    names: tuple[str, ...] = ()
    version: str = ""
    nonce: str = ""
    error: str | None = None


Request = DeltaRequest | SotwRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One due response.

    ``version`` is SOTW's type version and delta's ``system_version_info``; ``removed`` is empty in SOTW.
    """

    mode: XdsVariant
    type_url: str
    nonce: str
    version: str
    resources: tuple[Resource, ...]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """The peer accepted a response; ``resources``: those it newly holds. ``latency_s``: push to ACK."""

    type_url: str
    resources: tuple[Resource, ...]
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Nacked:
    """The peer rejected a response; any of ``suspects`` may be at fault."""

    type_url: str
    suspects: tuple[Resource, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """The peer still has these versions from an earlier stream, where it accepted them."""

    type_url: str
    resources: tuple[Resource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckResponse:
    """A response has waited for ``waiting_s`` seconds for its ACK or NACK."""

    type_url: str
    resources: tuple[Resource, ...]
    waiting_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownType:
    """The peer requests an unknown type; the response is empty."""

    type_url: str


Event = Acked | Nacked | Confirmed | StuckResponse | UnknownType


class Sync(Enum):
    """Sync state of one type."""

    SYNCED = "SYNCED"
    STALE = "STALE"
    NACK = "NACK"


class TypeSync(NamedTuple):
    """Sync state of one type on one stream: the cheap part of ``SubscriptionStatus``."""

    type_url: str
    state: Sync
    rejected: Mapping[str, str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatus:
    """One type of one stream. ``since_s``: clock at which this state began.

    ``version``: digest of all accepted resources; ``held``: their number. ``rejected``: names with a rejected
    desired version, and that version; ``reason``: of the last NACK.
    """

    type_url: str
    state: Sync
    since_s: float
    version: str
    held: int
    unacked: int
    rejected: Mapping[str, str]
    reason: str = ""


def reason_tail(message: str) -> str:
    """End of a NACK's text, where Envoy puts the cause; control characters become spaces."""
    cut = message if len(message) <= MAX_REASON_CHARACTERS else "…" + message[1 - MAX_REASON_CHARACTERS :]
    return "".join(one if one.isprintable() or one == "\n" else " " for one in cut)
