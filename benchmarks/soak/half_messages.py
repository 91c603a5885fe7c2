"""A process that begins gRPC messages and never ends them: ADDRESS CONNECTIONS STREAMS SIZE [NODE].

Each stream sends all but the last byte of its message; with a node, after a complete first request. When that is
done, or the server ended the streams, it prints the bytes sent and the streams ended, and waits. A line of input
begins again with new connections; the end of the input ends the process.
"""

import selectors
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded, StreamReset
from h2.exceptions import ProtocolError

from benchmarks.soak.attack_corpus import DISCOVERY, subscription

_PAYLOAD: Final = b"\x0a" * 65_536
_SETTLE_S: Final = 5.0


class Connection:
    """One connection; ``left`` is the number of bytes to send, by stream."""

    def __init__(self, host: str, port: int, streams: int, size: int, first: bytes = b"") -> None:
        self.socket = socket.create_connection((host, port))
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()
        self.left: dict[int, int] = {}
        self.sent = 0
        self.ended: set[int] = set()
        for _ in range(streams):
            number = self._h2.get_next_available_stream_id()
            headers = [(":method", "POST"), (":scheme", "http"), (":path", DISCOVERY), (":authority", "x")]
            self._h2.send_headers(number, [*headers, ("te", "trailers"), ("content-type", "application/grpc")])
            if first:
                self._h2.send_data(number, struct.pack(">BI", 0, len(first)) + first)
            self._h2.send_data(number, struct.pack(">BI", 0, size))
            self.left[number] = size - 1
        self.flush()

    def flush(self) -> None:
        """Send what flow control allows."""
        for number in list(self.left):
            while self.left.get(number):
                room = min(
                    self._h2.local_flow_control_window(number),
                    self._h2.max_outbound_frame_size,
                    self.left[number],
                    len(_PAYLOAD),
                )
                if room <= 0:
                    break
                self._h2.send_data(number, _PAYLOAD[:room])
                self.sent += room
                self.left[number] -= room
            if not self.left[number]:
                del self.left[number]
        self.socket.sendall(self._h2.data_to_send())

    def read(self) -> bool:
        """Process what arrived; whether the connection is still open."""
        try:
            data = self.socket.recv(65_536)
            for event in self._h2.receive_data(data) if data else ():
                if isinstance(event, StreamEnded | StreamReset):
                    self.ended.add(event.stream_id)
                    self.left.pop(event.stream_id, None)
            self.flush()
        except (OSError, ProtocolError):
            data = b""
        if not data:
            self.left.clear()
        return bool(data)


def main(address: str, connections: int, streams: int, size: int, node: str = "") -> None:
    """Attack as often as the input has lines, and once before."""
    host, _, port = address.rpartition(":")
    first = subscription(node) if node else b""
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
            for key, _ in events:
                if key.data is None:
                    return bool(sys.stdin.readline())
                if not key.data.read():
                    selector.unregister(key.fileobj)


if __name__ == "__main__":
    _address, _connections, _streams, _size, *_node = sys.argv[1:]
    main(_address, int(_connections), int(_streams), int(_size), *_node)
