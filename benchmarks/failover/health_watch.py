"""What the control plane thinks of engines while the experiment runs, a few times a second."""

import asyncio
import contextlib
import json
import time
from typing import Any

import aiohttp

from benchmarks.failover.engine_fleet import EngineFleet
from benchmarks.failover.experiment_history import HealthChange
from benchmarks.failover.proxy_tier import ProxyTier
from chaos.history.history_events import SAMPLE_S
from chaos.lab.envoy_sampler import SampledPool
from chaos.testbed.static_envoy import POOL


def watched(side: ProxyTier, fleet: EngineFleet) -> SampledPool:
    """The Envoys of a side, and the engines by the names that measures know them by."""
    return SampledPool(
        pool=POOL,
        admins={f"p{proxy}": admin for proxy, admin in enumerate(side.admins)},
        ports={port: f"e{engine}" for engine, port in enumerate(fleet.ports)},
        names={
            name: f"e{engine}" for names in (fleet.names, fleet.addresses) for engine, name in enumerate(names)
        },
    )


class HealthWatch:
    """``await watch.run()`` in a task until it is cancelled; then read ``verdicts``."""

    def __init__(self, session: aiohttp.ClientSession, side: ProxyTier, fleet: EngineFleet) -> None:
        self.verdicts: list[HealthChange] = []
        self._session = session
        self._control_plane = side.control_plane
        self._by_name = {name: engine for engine, name in enumerate(fleet.names)}
        self._known: dict[int, str] = {}

    async def run(self) -> None:
        """Look again and again; nothing to see where there is no control plane, or it is dead."""
        while self._control_plane:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
                await self._look()
            await asyncio.sleep(SAMPLE_S)

    async def _look(self) -> None:
        url = f"{self._control_plane}/v1/engines"
        async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=2.0)) as answer:
            if answer.status != 200:
                return
            page: Any = json.loads(await answer.read())
        at_s = time.monotonic()
        for one in page["engines"]:
            engine, health = self._by_name.get(one["engine"]), str(one["health"])
            if engine is not None and self._known.get(engine) != health:
                self._known[engine] = health
                self.verdicts.append(
                    HealthChange(at_s=at_s, engine=engine, health=health, reason=str(one.get("reason", "")))
                )
