"""Answers about the process and what single proxies are served, read off the publisher."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from policies.findings import did_you_mean
from policies.pool import EnginePool
from xds_server.admin.server_info import server_info
from xds_server.admin.views.context import UnknownNameError
from xds_server.admin_api.server_types import ServerInfo
from xds_server.model.snapshot import Snapshot
from xds_server.model.view import View
from xds_server.publish import Publisher
from xds_server.xds import DeniedPeerError, NodeInfo


class PublishedConfig:
    """What ``routes`` ask for; every answer is made when it is asked."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        listen: str = "",
        state_dir: Path | None = None,
        pools: Callable[[], Mapping[str, EnginePool]] = dict,
        view_expected: Callable[[NodeInfo], View] = lambda node: View(zone=node.zone),
        peek: Callable[[View], Snapshot | None] = lambda _: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._publisher = publisher
        self._listen = listen
        self._state_dir = state_dir
        self._pools = pools
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
            nodes=(proxy.node for proxy in self._publisher.proxies()),
        )

    def served(self, node: str) -> Snapshot:
        """What a connected proxy is served; ``UnknownNameError`` for another."""
        served = self._publisher.snapshot_served_to(node)
        if served is None:
            known = sorted(self._publisher.nodes)
            hint = did_you_mean(node, known)
            raise UnknownNameError(f"no proxy {node!r} is connected{f'; {hint}' if hint else ''}")
        return served

    def expected(self, node: NodeInfo) -> Snapshot:
        """What a proxy that is not here would be served if it came; ``UnknownNameError`` where that is nothing.

        Without what is its own: shares are reckoned of those who are here.
        """
        try:
            view = self._view_expected(node)
        except DeniedPeerError as error:
            raise UnknownNameError(
                f"no proxy {node.id!r} is connected, and the rules of access would turn it away: {error}"
            ) from error
        served = self._publisher.effective(view)
        if served is not None:
            return served
        meant = self._peek(view)
        if meant is None:
            raise UnknownNameError(f"no proxy {node.id!r} is connected, and nothing is served yet")
        return self._publisher.nack_policy.effective(view, meant)
