"""Drain progress of engines over all proxies; only the xDS server knows it.

An engine has left a proxy once the proxy accepted a version of the pool's endpoints in which it gets no new
requests. All versions since the ejection are remembered: with weights that change continuously, proxies are
always one version behind.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.bounded_dict import BoundedDict
from engine.report import EngineReport
from xds_server.decide.decisions import Decisions, Health
from xds_server.model.drain_progress import DrainProgress
from xds_server.model.fleet import EngineId
from xds_server.model.snapshot import Snapshot
from xds_server.model.type_urls import ENDPOINT
from xds_server.model.view import View
from xds_server.xds.acked_resources import GONE

MAX_VERSIONS: Final = 1000
"""Versions remembered per view; a proxy further behind counts as not drained."""


@dataclass(slots=True)
class _Out:
    """Versions of the pool's endpoints without the engine, by view, oldest first; empty: still in rotation."""

    versions: dict[Hashable, BoundedDict[str, None]] = field(default_factory=dict)


class DrainTracker:
    """Engines that drain."""

    def __init__(self) -> None:
        self._engines: dict[EngineId, _Out] = {}

    @property
    def engines(self) -> Collection[EngineId]:
        """Engines that drain now."""
        return self._engines.keys()

    def on_report(self, report: EngineReport) -> bool:
        """Record a report; returns whether its engine drains."""
        key = EngineId(report.pool, report.engine)
        if report.drain is None:
            self._engines.pop(key, None)
            return False
        self._engines.setdefault(key, _Out())
        return True

    def on_published(self, decisions: Decisions, snapshots: Mapping[View, Snapshot]) -> None:
        """Record the served snapshots."""
        for key, out in list(self._engines.items()):
            decision = decisions.engines.get(key)
            if decision is None:
                del self._engines[key]  # removed from the policies
            elif decision.health is Health.HEALTHY:
                out.versions.clear()
            else:
                for view, snapshot in snapshots.items():
                    if item := snapshot.of(ENDPOINT).get(key.pool):
                        known = out.versions.setdefault(view, BoundedDict(MAX_VERSIONS))
                        known.setdefault(item.version, None)

    def progress(self, key: EngineId, held: Iterable[tuple[Hashable, str]]) -> DrainProgress | None:
        """Drain progress; None if the engine is in rotation or does not drain.

        ``held``: view and accepted version of each proxy subscribed to the pool's endpoints.
        """
        out = self._engines.get(key)
        if out is None or not out.versions:
            return None
        proxies = [version == GONE or version in out.versions.get(view, ()) for view, version in held]
        return DrainProgress(proxies_total=len(proxies), proxies_acknowledged=sum(proxies))
