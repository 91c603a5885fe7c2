"""xDS protocol logic without I/O: takes requests and snapshots, returns due responses.

Nothing here awaits, reads a clock or opens a socket. ``Stream`` is one peer's stream, ``TypeState`` one type of
it. ``decode_request`` parses incoming bytes, ``ResponseCache`` encodes outgoing ones.
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
from xds_server.xds.stream import ContentKey, SharedContent, Stream

__all__ = (
    "Acked",
    "Confirmed",
    "ContentKey",
    "DeltaRequest",
    "DeniedPeerError",
    "Event",
    "Nacked",
    "NodeInfo",
    "Request",
    "Response",
    "ResponseCache",
    "SharedContent",
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
