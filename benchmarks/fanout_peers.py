"""Many delta ADS peers in one process, lean enough to measure a server by: ``python -m benchmarks.fanout_peers``.

Each peer has a TCP connection of its own, as an Envoy does, subscribes to all clusters and to the endpoints of
one, and acknowledges what it gets. HTTP/2 is spoken by hand, because a gRPC client in Python would spend more time
on receiving a push than the server does on sending it.

One JSON line on stdout per event: ``connected`` when the last peer has its clusters and endpoints, ``push`` when
the last one has received the next change. Clocks are ``time.monotonic``, which all processes of a Linux machine
share.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Final

from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.wire.decode import DeltaDiscoveryRequest

PATH: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_ACK, _END_HEADERS = 1, 4
_WIDE_OPEN: Final = (1 << 31) - 1


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    # HPACK, literal without indexing (RFC 7541, 6.2.2); every length here is below 127.
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def _message(data: bytes) -> bytes:
    return _frame(_DATA, 0, 1, b"\x00" + struct.pack(">I", len(data)) + data)


_OPENING: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, _WIDE_OPEN))
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


def _acknowledgement(response: bytes) -> tuple[str, bytes]:
    """The type URL of a DeltaDiscoveryResponse and the request that acknowledges it."""
    type_url = nonce = b""
    at = 0
    while at < len(response):
        number, at = response[at] >> 3, at + 1
        length = shift = 0
        while True:
            byte = response[at]
            length |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        if number == 4:
            type_url = response[at : at + length]
        elif number == 5:
            nonce = response[at : at + length]
        at += length
    return type_url.decode(), b"\x12" + bytes([len(type_url)]) + type_url + b"\x32" + bytes([len(nonce)]) + nonce


class DeltaAdsPeer(asyncio.Protocol):
    """One simulated Envoy; ``got`` is called with each type URL received."""

    def __init__(self, name: str, got: Callable[[str], None], lost: Callable[[], None]) -> None:
        self._name = name
        self._got = got
        self._lost = lost
        self._frames = bytearray()
        self._messages = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        clusters = DeltaDiscoveryRequest(type_url=CLUSTER)
        clusters.node.id = self._name
        endpoints = DeltaDiscoveryRequest(type_url=ENDPOINT, resource_names_subscribe=["c"])
        first = _message(clusters.SerializeToString()) + _message(endpoints.SerializeToString())
        transport.write(_OPENING + first)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._lost()

    def data_received(self, data: bytes) -> None:
        buffer = self._frames
        buffer += data
        at = 0
        while len(buffer) - at >= 9:
            length = int.from_bytes(buffer[at : at + 3], "big")
            end = at + 9 + length
            if len(buffer) < end:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            if kind == _DATA:
                self._messages += buffer[at + 9 : end]
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                payload = b"" if kind == _SETTINGS else bytes(buffer[at + 9 : end])
                self._transport.write(_frame(kind, _ACK, 0, payload))
            at = end
        del buffer[:at]
        while len(self._messages) >= 5:
            end = 5 + int.from_bytes(self._messages[1:5], "big")
            if len(self._messages) < end:
                break
            type_url, answer = _acknowledgement(bytes(self._messages[5:end]))
            del self._messages[:end]
            self._got(type_url)
            self._transport.write(_message(answer))


async def run(port: int, peers: int) -> None:
    """Connect all peers at once and report until the server ends."""
    started_s = time.monotonic()
    lost = asyncio.Event()
    received_s: list[float] = []
    connected = False

    def got(type_url: str) -> None:
        nonlocal connected
        received_s.append(time.monotonic())
        expected = peers if connected else 2 * peers
        if len(received_s) == expected and (connected or type_url):
            event = {
                "event": "push" if connected else "connected",
                "started_s": started_s,
                "median_s": median(received_s),
                "last_s": received_s[-1],
            }
            print(json.dumps(event), flush=True)
            connected = True
            received_s.clear()

    loop = asyncio.get_running_loop()
    await asyncio.gather(
        *[
            loop.create_connection(lambda name=f"peer-{n}": DeltaAdsPeer(name, got, lost.set), "127.0.0.1", port)  # type: ignore[misc]
            for n in range(peers)
        ]
    )
    await lost.wait()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), int(sys.argv[2])))
