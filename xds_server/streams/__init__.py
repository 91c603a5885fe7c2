"""The xDS protocol as a value: feed it requests and snapshots, take out the responses that are due.

Nothing in here awaits, reads a clock or opens a socket. ``Stream`` is one peer's stream, ``requests`` reads
the bytes that come in, ``encode`` writes those that go out.
"""

from xds_server.streams.encode import Encoder
from xds_server.streams.requests import read_request
from xds_server.streams.stream import Stream
from xds_server.streams.values import (
    Acked,
    Confirmed,
    DeltaRequest,
    Event,
    Flaw,
    KindStanding,
    Mode,
    Nacked,
    NodeInfo,
    RefusedPeerError,
    Request,
    Response,
    SotwRequest,
    StreamError,
    Stuck,
    Sync,
    UnknownType,
    WatchStatus,
)

__all__ = (
    "Acked",
    "Confirmed",
    "DeltaRequest",
    "Encoder",
    "Event",
    "Flaw",
    "KindStanding",
    "Mode",
    "Nacked",
    "NodeInfo",
    "RefusedPeerError",
    "Request",
    "Response",
    "SotwRequest",
    "Stream",
    "StreamError",
    "Stuck",
    "Sync",
    "UnknownType",
    "WatchStatus",
    "read_request",
)
