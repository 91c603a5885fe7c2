"""Process data and the resources of single proxies, read from the publisher."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from policies.findings import did_you_mean
from policies.pool import EnginePool
from policies.route import ModelRoute
from xds_server.admin.server_info import server_info
from xds_server.admin.views.context import UnknownNameError
from xds_server.admin_api.server_types import ServerInfo
from xds_server.model.snapshot import Snapshot
from xds_server.model.view import View
from xds_server.publish import Publisher
from xds_server.xds import DeniedPeerError, NodeInfo


class PublishedConfig:
    """Source for ``routes``; computes each answer on request."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        listen: str = "",
        state_dir: Path | None = None,
        pools: Callable[[], Mapping[str, EnginePool]] = dict,
        routes: Callable[[], Mapping[str, ModelRoute]] = dict,
        view_expected: Callable[[NodeInfo], View] = lambda node: View(zone=node.zone),
        peek: Callable[[View], Snapshot | None] = lambda _: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._publisher = publisher
        self._listen = listen
        self._state_dir = state_dir
        self._pools = pools
        self._routes = routes
        self._view_expected = view_expected
        self._peek = peek
        self._wall = wall

    def server_info(self) -> ServerInfo:
        """The process and its proxies."""
        pools = self._pools()
        return server_info(
            self._wall(),
            state_dir=self._state_dir,
            listen=self._listen,
            gated_pools=(name for name, pool in pools.items() if pool.spec.first_token_gate),
            tls_pools=(name for name, pool in pools.items() if pool.spec.tls is not None),
            routes=self._routes().values(),
            nodes=(proxy.node for proxy in self._publisher.proxies()),
        )

    def served(self, node: str) -> Snapshot:
        """Resources served to a connected proxy; ``UnknownNameError`` if not connected."""
        served = self._publisher.snapshot_served_to(node)
        if served is None:
            known = sorted(self._publisher.nodes)
            hint = did_you_mean(node, known)
            raise UnknownNameError(f"proxy {node!r} is not connected{f'; {hint}' if hint else ''}")
        return served

    def expected(self, node: NodeInfo) -> Snapshot:
        """Resources that an absent proxy would be served; ``UnknownNameError`` if none.

        Excludes per-proxy shares, which depend on the connected proxies.
        """
        try:
            view = self._view_expected(node)
        except DeniedPeerError as error:
            raise UnknownNameError(
                f"proxy {node.id!r} is not connected, and the access rules would refuse it: {error}"
            ) from error
        served = self._publisher.effective(view)
        if served is not None:
            return served
        meant = self._peek(view)
        if meant is None:
            raise UnknownNameError(f"proxy {node.id!r} is not connected, and no resources are served yet")
        return self._publisher.nack_policy.effective(view, meant)
