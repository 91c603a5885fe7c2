"""Looks at the control plane and at the Envoy all the time, and keeps every change with its moment.

So a test can say afterwards what must never have been, and how long things took.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp
import pytest

_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """State of one engine from ``at_s`` (monotonic) on.

    ``verdict`` is the control plane's, None before the first. ``envoy`` is the health in Envoy: HEALTHY,
    UNHEALTHY, DRAINING, or None if Envoy does not have the engine. ``ejected``: by Envoy's own outlier detection.
    """

    at_s: float
    verdict: str | None
    envoy: str | None
    ejected: bool
    evidence: str

    @property
    def takes_traffic(self) -> bool:
        return self.envoy == "HEALTHY" and not self.ejected

    @property
    def works(self) -> bool:
        """Whether it produces tokens and gets requests, with or without a queue."""
        return self.takes_traffic and self.verdict in ("ready", "busy")


class Watch:
    """The changes of each engine, oldest first, in ``changes``."""

    def __init__(
        self, session: aiohttp.ClientSession, admin: int, envoy_admin: int, engines: Mapping[int, str]
    ) -> None:
        self.changes: dict[str, list[Observation]] = {name: [] for name in engines.values()}
        self._session = session
        self._admin = admin
        self._envoy_admin = envoy_admin
        self._engines = engines
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch while the block runs."""
        self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._task.cancel()
            await asyncio.wait([self._task])

    def now(self, name: str) -> Observation:
        """What is known of an engine now."""
        return self.changes[name][-1]

    def since(self, name: str, at_s: float) -> list[Observation]:
        """What was known at ``at_s``, and every change after it."""
        changes = self.changes[name]
        first = next((at for at, seen in enumerate(changes) if seen.at_s > at_s), len(changes))
        return changes[max(0, first - 1) :]

    async def verdict(self, name: str, verdict: str, *, after_s: float, limit_s: float) -> Observation:
        """The first moment after ``after_s`` at which the verdict was so."""
        return await self._first(name, after_s, limit_s, verdict=verdict)

    async def out(self, name: str, *, after_s: float, limit_s: float) -> Observation:
        """The first observation after ``after_s`` in which Envoy sends it no new requests."""
        return await self._first(name, after_s, limit_s, takes_traffic=False)

    async def back(self, name: str, *, after_s: float, limit_s: float) -> Observation:
        """The first moment after ``after_s`` at which it produced tokens and the Envoy sent requests there."""
        return await self._first(name, after_s, limit_s, works=True)

    def story(self, name: str) -> str:
        """All changes in lines."""
        changes = self.changes[name]
        return "\n".join(
            f"{name} {seen.at_s - changes[0].at_s:8.2f} {seen.verdict} {seen.envoy}"
            f"{' ejected' if seen.ejected else ''} {seen.evidence}"
            for seen in changes
        )

    async def _first(self, name: str, after_s: float, limit_s: float, **wanted: object) -> Observation:
        give_up_at = time.monotonic() + limit_s
        while True:
            for seen in self.changes[name]:
                if seen.at_s >= after_s and all(getattr(seen, key) == value for key, value in wanted.items()):
                    return seen
            if self._task is None or self._task.done():
                pytest.fail(f"the watch has ended: {self._task}")
            if time.monotonic() > give_up_at:
                pytest.fail(f"{name} was not {wanted} within {limit_s} s:\n{self.story(name)}")
            await asyncio.sleep(_PAUSE_S)

    async def _run(self) -> None:
        while True:
            # Read Envoy first: the state it uses was decided earlier.
            clusters = await self._json(f"http://127.0.0.1:{self._envoy_admin}/clusters?format=json")
            engines = await self._json(f"http://127.0.0.1:{self._admin}/v1/engines")
            at_s = time.monotonic()
            # An engine is a listener inside the Envoy, which is named after it.
            healths = {
                host["address"]["envoy_internal_address"]["server_listener_name"].rpartition("/")[2]: host[
                    "health_status"
                ]
                for cluster in clusters.get("cluster_statuses", [])
                for host in cluster.get("host_statuses", [])
                if "envoy_internal_address" in host["address"]
            }
            told = {one["engine"]: one for one in engines.get("engines", [])}
            for name in self._engines.values():
                one, health = told.get(name, {}), healths.get(name, {})
                self._keep(
                    name,
                    Observation(
                        at_s=at_s,
                        verdict=one.get("verdict"),
                        envoy=health.get("eds_health_status"),
                        ejected=health.get("failed_outlier_check", False),
                        evidence=str(one.get("evidence", "")),
                    ),
                )
            await asyncio.sleep(_PAUSE_S)

    def _keep(self, name: str, seen: Observation) -> None:
        changes = self.changes[name]
        if not changes or replace(seen, at_s=0.0, evidence="") != replace(changes[-1], at_s=0.0, evidence=""):
            changes.append(seen)

    async def _json(self, url: str) -> Any:
        """The JSON at ``url``; an empty object while the port is closed."""
        try:
            async with self._session.get(url) as answer:
                return await answer.json()
        except aiohttp.ClientConnectionError:
            return {}
