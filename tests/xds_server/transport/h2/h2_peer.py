"""A client in memory: ``hyper``'s h2 on one side, our connection on the other, and frames by hand."""

from collections.abc import Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection as H2Client
from h2.events import Event as ClientEvent
from hpack import Encoder

from xds_server.transport.h2 import H2Connection, H2Limits, frames
from xds_server.transport.h2.connection import Event

HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/service/Method"),
    (":authority", "server"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
OPENING = frames.PREFACE + frames.settings({})


def block(headers: Iterable[tuple[str, str]] = HEADERS) -> bytes:
    """A header block that leaves the dynamic table empty, as for a new connection."""
    return Encoder().encode([(name, value, True) for name, value in headers])


def request(stream: int = 1, *, ended: bool = False, payload: bytes | None = None) -> bytes:
    """HEADERS of a request."""
    flags = frames.END_HEADERS | (frames.END_STREAM if ended else 0)
    return frames.frame(frames.HEADERS, flags, stream, block() if payload is None else payload)


def data(stream: int, payload: bytes, *, ended: bool = False) -> bytes:
    return frames.frame(frames.DATA, frames.END_STREAM if ended else 0, stream, payload)


def opened(limits: H2Limits | None = None) -> H2Connection:
    """A connection whose peer has sent preface and settings; its output so far is dropped."""
    made = H2Connection(limits or H2Limits(), 0.0)
    assert made.receive(OPENING, 0.0) == []
    made.output.clear()
    return made


def written(connection: H2Connection) -> list[frames.Frame]:
    """Frames that were sent since the last call."""
    found = list(frames.FrameReader().feed(b"".join(connection.output)))
    connection.output.clear()
    return found


class Pair:
    """An h2 client and our connection; ``exchange`` passes bytes until neither has more."""

    def __init__(self, limits: H2Limits | None = None) -> None:
        self.server = H2Connection(limits or H2Limits(), 0.0)
        self.client = H2Client(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.client.initiate_connection()
        self.server_events: list[Event] = []
        self.client_events: list[ClientEvent] = []
        self.exchange()

    def exchange(self, now_s: float = 0.0) -> None:
        while True:
            to_server = self.client.data_to_send()
            if to_server:
                self.server_events += self.server.receive(to_server, now_s)
            to_client = b"".join(self.server.output)
            self.server.output.clear()
            if to_client:
                self.client_events += self.client.receive_data(to_client)
            if not to_server and not to_client:
                return
