"""Limits of connections and their streams, beyond those of ``StreamLimits``."""

from dataclasses import dataclass, field

from xds_server.auth.stream_limits import MAX_CONNECTIONS_OF_HOST
from xds_server.auth.unfinished_messages import MAX_BYTES, MAX_BYTES_OF_HOST
from xds_server.transport.h2 import H2Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """Times in seconds.

    ``handshake_s``: from the connection to HTTP/2's first frames, TLS included. ``idle_s``: without a stream.
    ``ping_s``: silence after which the peer is asked for a sign of life, within ``ping_answer_s``. ``message_s``:
    from the first to the last byte of a message. ``response_s``: until a peer has read a response.
    """

    h2: H2Limits = field(default_factory=H2Limits)
    connections_of_host: int = MAX_CONNECTIONS_OF_HOST
    handshake_s: float = 20.0
    idle_s: float = 60.0
    ping_s: float = 15.0
    ping_answer_s: float = 5.0
    message_s: float = 30.0
    response_s: float = 120.0
    # Of messages that are not complete, or wait for the time of their peer.
    held_bytes_of_connection: int = 8 * 1024 * 1024
    held_bytes_of_host: int = MAX_BYTES_OF_HOST
    held_bytes: int = MAX_BYTES
    # Written and not taken by the kernel: above the first number no further data is written, above the second,
    # which only answers to frames can reach, the connection ends.
    send_buffer_bytes: int = 64 * 1024
    most_send_buffer_bytes: int = 512 * 1024
