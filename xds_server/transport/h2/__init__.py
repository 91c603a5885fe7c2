"""HTTP/2 and gRPC as values: feed bytes, get events and bytes to send. No I/O, no clock.

Only the server's half, and only requests with streams of gRPC messages. Limits against hostile peers are part of
the state machine (``limits.py``). Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK), and gRPC's "PROTOCOL-HTTP2".
"""

from xds_server.transport.h2.connection import (
    DataReceived,
    H2Connection,
    RequestReceived,
    SendWindowOpened,
    StreamClosed,
)
from xds_server.transport.h2.frames import ErrorCode, H2Error
from xds_server.transport.h2.limits import H2Limits

__all__ = (
    "DataReceived",
    "ErrorCode",
    "H2Connection",
    "H2Error",
    "H2Limits",
    "RequestReceived",
    "SendWindowOpened",
    "StreamClosed",
)
