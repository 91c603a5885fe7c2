"""Tells the agents of draining engines how many proxies have confirmed that they send nothing new there."""

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
"""A push brings one ACK per proxy: those of this long are sent to the agents together."""

AckedVersions = Callable[[str, str], Iterable[tuple[Hashable, str]]]
"""Of a type URL and a resource: view and confirmed version of each proxy that wants it."""


class DrainNotifier:
    """Follows reports, rounds and ACKs; ``send`` takes the progress of one engine."""

    def __init__(self, acked_versions: AckedVersions, send: Callable[[EngineId, DrainProgress], None]) -> None:
        self._acked_versions = acked_versions
        self._send = send
        self._tracker = DrainTracker()
        self._timer: asyncio.TimerHandle | None = None

    def on_report(self, report: EngineReport) -> None:
        """Note whether this engine drains."""
        if self._tracker.on_report(report):
            self._send_soon()

    def on_published(self, decisions: Decisions, snapshots: Mapping[View, Snapshot]) -> None:
        """Note what proxies are served from now on."""
        if self._tracker.engines:
            self._tracker.on_published(decisions, snapshots)
            self._send_soon()

    def on_ack(self, type_url: str) -> None:
        """Note that a proxy confirmed a response."""
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
