"""The xDS protocol as a value: feed it requests and snapshots, take the responses that are due.

Nothing in here awaits, reads a clock or opens a socket. ``Stream`` is one peer's stream, ``TypeState`` one
type of it. ``decode_request`` reads the bytes that come in, ``ResponseCache`` encodes those that go out.
"""

from xds_server.xds.discovery_requests import decode_request
from xds_server.xds.messages import (
    Acked,
    Confirmed,
    DeltaRequest,
    DeniedPeerError,
    Event,
    Nacked,
    NodeInfo,
    Request,
    Response,
    SotwRequest,
    StreamError,
    StreamErrorKind,
    StuckResponse,
    SubscriptionStatus,
    Sync,
    TypeSync,
    UnknownType,
    XdsVariant,
)
from xds_server.xds.response_cache import ResponseCache
from xds_server.xds.stream import Stream

__all__ = (
    "Acked",
    "Confirmed",
    "DeltaRequest",
    "DeniedPeerError",
    "Event",
    "Nacked",
    "NodeInfo",
    "Request",
    "Response",
    "ResponseCache",
    "SotwRequest",
    "Stream",
    "StreamError",
    "StreamErrorKind",
    "StuckResponse",
    "SubscriptionStatus",
    "Sync",
    "TypeSync",
    "UnknownType",
    "XdsVariant",
    "decode_request",
)
