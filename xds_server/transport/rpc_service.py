"""Services of the own gRPC server: one bidirectional method each, with bytes in and out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from xds_server.auth.connection_limit import ConnectionLimiter
from xds_server.auth.stream_limits import StreamLimits
from xds_server.transport.h2.grpc_messages import GrpcCode


class RpcError(Exception):
    """A peer's error; its stream ends with ``code`` and this text, and ``flaw`` is counted."""

    def __init__(self, code: GrpcCode, text: str, flaw: str) -> None:
        super().__init__(text)
        self.code = code
        self.flaw = flaw


class RpcPeer(NamedTuple):
    """A connection: its address as gRPC writes it, the names that its certificate proves, and its host."""

    address: str
    identities: tuple[str, ...]
    host: str


class RpcHandler(Protocol):
    """One stream. No method waits; ``now_s`` is the server's clock."""

    @property
    def node(self) -> str:
        """Node id of the peer; empty until it is known."""

    @property
    def price(self) -> float:
        """Times its own CPU time that the last message is charged."""

    def take(self, data: bytes, now_s: float) -> None:
        """Handle one message; ``RpcError`` ends the stream."""

    def poll(self, now_s: float) -> bytes | None:
        """Next response to write, None if nothing is due. Called when the stream can take it."""

    def close(self, reason: str) -> None:
        """The stream has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcService:
    """``connect`` makes the handler of a stream from its peer, ``wake`` (something is due) and ``end``.

    ``max_bytes``: limit of a message after the first. ``on_flaw`` gets each error and its host.
    """

    method: str
    connect: Callable[[RpcPeer, Callable[[], None], Callable[[RpcError], None]], RpcHandler]
    limits: StreamLimits
    limiter: ConnectionLimiter
    max_bytes: int
    on_flaw: Callable[[str, str], None]
