"""Reports to the agents of draining engines how many proxies have stopped sending requests."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final

from engine.report import EngineReport
from xds_server.decide.decisions import Decisions
from xds_server.model.drain_progress import DrainProgress
from xds_server.model.fleet import EngineId
from xds_server.model.snapshot import Snapshot
from xds_server.model.type_urls import ENDPOINT
from xds_server.model.view import View
from xds_server.publish.drain_tracker import DrainTracker

NOTIFY_WITHIN_S: Final = 0.005
"""Batching interval: a push causes one ACK per proxy."""

AckedVersions = Callable[[str, str], Iterable[tuple[Hashable, str]]]
"""For a type URL and a resource: view and accepted version of each subscribed proxy."""


class DrainNotifier:
    """Follows reports, rounds and ACKs; ``send`` receives the drain progress of one engine."""

    def __init__(self, acked_versions: AckedVersions, send: Callable[[EngineId, DrainProgress], None]) -> None:
        self._acked_versions = acked_versions
        self._send = send
        self._tracker = DrainTracker()
        self._timer: asyncio.TimerHandle | None = None

    def on_report(self, report: EngineReport) -> None:
        """Record whether this engine drains."""
        if self._tracker.on_report(report):
            self._send_soon()

    def on_published(self, decisions: Decisions, snapshots: Mapping[View, Snapshot]) -> None:
        """Record the served snapshots."""
        if self._tracker.engines:
            self._tracker.on_published(decisions, snapshots)
            self._send_soon()

    def on_ack(self, type_url: str) -> None:
        """Record that a proxy accepted (ACK) a response."""
        if type_url == ENDPOINT and self._tracker.engines:
            self._send_soon()

    def _send_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NOTIFY_WITHIN_S, self._send_progress)

    def _send_progress(self) -> None:
        self._timer = None
        acked = {key.pool: self._acked_versions(ENDPOINT, key.pool) for key in self._tracker.engines}
        for key in self._tracker.engines:
            progress = self._tracker.progress(key, acked[key.pool])
            if progress is not None:
                self._send(key, progress)
