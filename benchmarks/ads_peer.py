"""A delta ADS peer on a TCP connection of its own, lean enough to measure a server by.

HTTP/2 is spoken by hand, because a gRPC client in Python would spend more time on receiving a push than the server
does on sending it. Requests wait for the server's flow control, as those of an Envoy do.
"""

import asyncio
import struct
from abc import ABC, abstractmethod
from typing import Final

from xds_server.wire.field_spans import field_spans
from xds_server.wire.varint import delimited

PATH: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_ACK, _END_HEADERS = 1, 4
_INITIAL_WINDOW: Final = 4
_WIDE_OPEN: Final = (1 << 31) - 1
_FRAME_BYTES: Final = 16_384
_TYPE_URL, _NONCE = 2, 6  # of a DeltaDiscoveryRequest


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    # HPACK, literal without indexing (RFC 7541, 6.2.2); every length here is below 127.
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


_OPENING: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, _WIDE_OPEN))
    + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _WIDE_OPEN - 65_535))
    + _frame(
        _HEADERS,
        _END_HEADERS,
        1,
        b"".join(
            _literal(name, value)
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", PATH),
                (":authority", "switchgear"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            )
        ),
    )
)


def fields(message: bytes) -> list[tuple[int, bytes]]:
    """Number and value of each field of a message; of length-delimited ones the bytes after the length."""
    return [(number, message[start:end]) for number, _, start, end in field_spans(message)]


def acknowledgement(type_url: bytes, nonce: bytes) -> bytes:
    """The DeltaDiscoveryRequest that acknowledges a response."""
    return delimited(_TYPE_URL, type_url) + delimited(_NONCE, nonce)


class AdsPeer(asyncio.Protocol, ABC):
    """One simulated Envoy; subclasses say what is requested first, and what follows a response."""

    def __init__(self) -> None:
        self._frames = bytearray()
        self._messages = bytearray()
        self._unsent = bytearray()
        self._stream_window = self._connection_window = self._initial_window = 65_535

    @abstractmethod
    def opened(self) -> None:
        """Send the first requests."""

    @abstractmethod
    def received(self, response: bytes) -> None:
        """Handle one DeltaDiscoveryResponse."""

    def request(self, message: bytes) -> None:
        """Send one DeltaDiscoveryRequest, once the server has room for it."""
        self._unsent += b"\x00" + struct.pack(">I", len(message)) + message
        self._send()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(_OPENING)
        self.opened()

    def data_received(self, data: bytes) -> None:
        buffer = self._frames
        buffer += data
        at = 0
        while len(buffer) - at >= 9:
            length = int.from_bytes(buffer[at : at + 3], "big")
            end = at + 9 + length
            if len(buffer) < end:
                break
            kind, flags, stream = buffer[at + 3], buffer[at + 4], int.from_bytes(buffer[at + 5 : at + 9], "big")
            payload = bytes(buffer[at + 9 : end])
            if kind == _DATA:
                self._messages += payload
            elif kind == _WINDOW_UPDATE:
                self._widen(stream, int.from_bytes(payload, "big"))
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                if kind == _SETTINGS:
                    self._set(payload)
                self._transport.write(_frame(kind, _ACK, 0, b"" if kind == _SETTINGS else payload))
            at = end
        del buffer[:at]
        while len(self._messages) >= 5:
            end = 5 + int.from_bytes(self._messages[1:5], "big")
            if len(self._messages) < end:
                break
            response = bytes(self._messages[5:end])
            del self._messages[:end]
            self.received(response)

    def _set(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            number, value = struct.unpack(">HI", payload[at : at + 6])
            if number == _INITIAL_WINDOW:
                self._stream_window += value - self._initial_window
                self._initial_window = value
        self._send()

    def _widen(self, stream: int, by: int) -> None:
        if stream:
            self._stream_window += by
        else:
            self._connection_window += by
        self._send()

    def _send(self) -> None:
        while self._unsent and (room := min(self._stream_window, self._connection_window, _FRAME_BYTES)) > 0:
            part = bytes(self._unsent[:room])
            del self._unsent[:room]
            self._stream_window -= len(part)
            self._connection_window -= len(part)
            self._transport.write(_frame(_DATA, 0, 1, part))
