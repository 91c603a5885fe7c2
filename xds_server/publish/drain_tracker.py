"""How far draining engines have left the proxies: only an xDS server can know that.

An engine has left a proxy when the proxy has confirmed some version of the pool's endpoints in which the engine
takes nothing new. Every version published since its ejection is remembered: the proxies of a pool whose weights
move all the time are always one version behind.
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
"""Remembered per view; beyond that the oldest are forgotten, and a proxy that far behind is not there yet."""


@dataclass(slots=True)
class _Out:
    """The versions of the pool's endpoints without the engine, by view, oldest first; empty: not out yet."""

    versions: dict[Hashable, BoundedDict[str, None]] = field(default_factory=dict)


class DrainTracker:
    """The engines that drain."""

    def __init__(self) -> None:
        self._engines: dict[EngineId, _Out] = {}

    @property
    def engines(self) -> Collection[EngineId]:
        """Those that drain now."""
        return self._engines.keys()

    def on_report(self, report: EngineReport) -> bool:
        """Note a report; whether its engine drains."""
        key = EngineId(report.pool, report.engine)
        if report.drain is None:
            self._engines.pop(key, None)
            return False
        self._engines.setdefault(key, _Out())
        return True

    def on_published(self, decisions: Decisions, snapshots: Mapping[View, Snapshot]) -> None:
        """Note what proxies are served from now on."""
        for key, out in list(self._engines.items()):
            decision = decisions.engines.get(key)
            if decision is None:
                del self._engines[key]  # no longer in the policies
            elif decision.health is Health.HEALTHY:
                out.versions.clear()
            else:
                for view, snapshot in snapshots.items():
                    if item := snapshot.of(ENDPOINT).get(key.pool):
                        known = out.versions.setdefault(view, BoundedDict(MAX_VERSIONS))
                        known.setdefault(item.version, None)

    def progress(self, key: EngineId, held: Iterable[tuple[Hashable, str]]) -> DrainProgress | None:
        """How far it has come; None while the engine is not out, or does not drain.

        ``held`` are view and confirmed version of every proxy that wants the endpoints of the engine's pool.
        """
        out = self._engines.get(key)
        if out is None or not out.versions:
            return None
        proxies = [version == GONE or version in out.versions.get(view, ()) for view, version in held]
        return DrainProgress(proxies_total=len(proxies), proxies_acknowledged=sum(proxies))
