"""ADS over the own transport: the same sessions as ``GrpcAdsServer``, with callbacks instead of tasks."""

import ssl
import time
from collections.abc import Callable, Iterable

from xds_server.auth.connection_limit import ConnectionLimiter
from xds_server.auth.stream_limits import StreamLimits
from xds_server.publish.ads_service import MAX_REQUEST_BYTES, METHODS, status_of, tick
from xds_server.publish.publisher import Publisher
from xds_server.transport import H2Server, RpcError, RpcHandler, RpcPeer, RpcService, TransportLimits
from xds_server.xds import StreamError, StreamErrorKind, XdsVariant


class H2AdsServer:
    """Serves delta and state-of-the-world ADS on ``host:port`` (port 0: any free port).

    ``services``: further services on the port. Without ``tls`` the port is plaintext. ``on_flaw`` is called for
    each stream or connection closed because of a peer error.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        services: Iterable[RpcService] = (),
        on_flaw: Callable[[StreamErrorKind], None] = lambda _: None,
        limits: StreamLimits | None = None,
        transport_limits: TransportLimits | None = None,
    ) -> None:
        self._publisher = publisher
        self._limits = limits = limits or StreamLimits()
        limiter = ConnectionLimiter("streams", limits.streams, limits.streams_per_host)
        discovery = (
            RpcService(
                method=method,
                connect=_connector(publisher, mode),
                limits=limits,
                limiter=limiter,
                max_bytes=MAX_REQUEST_BYTES,
                on_flaw=lambda flaw, _host: on_flaw(StreamErrorKind(flaw)),
            )
            for method, mode in METHODS.items()
        )
        self._server = H2Server(
            (*discovery, *services),
            host=host,
            port=port,
            tls=tls,
            limits=transport_limits,
            reached=limits.reached,
            on_flaw=on_flaw,
        )

    async def start(self) -> int:
        """Open the port and return its number; ``OSError`` if it is in use."""
        return await self._server.start()

    async def run(self) -> None:
        """Tick the publisher and watch the memory until cancelled."""
        await tick(self._publisher, self._limits.memory, time.monotonic)

    async def stop(self) -> None:
        """Close the port and all streams with status OK: peers see no error."""
        await self._server.stop()


def _connector(
    publisher: Publisher, mode: XdsVariant
) -> Callable[[RpcPeer, Callable[[], None], Callable[[RpcError], None]], RpcHandler]:
    def connect(peer: RpcPeer, wake: Callable[[], None], end: Callable[[RpcError], None]) -> RpcHandler:
        return _DiscoveryHandler(publisher, mode, peer, wake, end)

    return connect


class _DiscoveryHandler:
    """One discovery stream."""

    __slots__ = ("_session",)

    price = 1.0

    def __init__(
        self,
        publisher: Publisher,
        mode: XdsVariant,
        peer: RpcPeer,
        wake: Callable[[], None],
        end: Callable[[RpcError], None],
    ) -> None:
        self._session = publisher.connect(
            mode, peer.address, wake, identities=peer.identities, end=lambda error: end(_rpc_error(error))
        )

    @property
    def node(self) -> str:
        """Node id of the peer; empty until it is known."""
        return self._session.node_id

    def take(self, data: bytes, now_s: float) -> None:
        """Process one request."""
        try:
            self._session.request(data, now_s)
        except StreamError as error:
            raise _rpc_error(error) from None

    def poll(self, now_s: float) -> bytes | None:
        """Next response to write, None if nothing is due."""
        return self._session.poll(now_s)

    def close(self, reason: str) -> None:
        """End the session."""
        self._session.close(reason)


def _rpc_error(error: StreamError) -> RpcError:
    return RpcError(status_of(error), str(error), error.flaw)
