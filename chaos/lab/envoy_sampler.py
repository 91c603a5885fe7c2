"""Samples of the Envoys' admin pages during an experiment, a few times a second.

The pages are small (about 2 ms of an Envoy's main thread, no worker time). The samples only go to the history.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from chaos.history.history_events import SAMPLE_S, ProxySample

CEILING_EVERY: Final = 5
"""Samples between two reads of the larger pages: runtime (for the admission limit) and statistics."""

_PAGE_LIMIT_S: Final = 2.0
_NO_LIMIT: Final = 1_000_000
"""Limits from this value on mean no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPool:
    """What to sample.

    ``admins`` are the Envoys' admin addresses by name; ``ports`` the ports at which Envoys reach the engines of
    ``pool``, which is also the cluster's name. ``names`` maps policy names to engines, for Envoys with a listener
    per engine; ADDRESS:PORT is the name of an engine that shares its port with others.
    """

    pool: str
    admins: Mapping[str, str]
    ports: Mapping[int, str]
    names: Mapping[str, str]


class EnvoySampler:
    """``await sampler.run()`` until cancelled; calls ``on_sample`` for each page."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        watched: SampledPool,
        on_sample: Callable[[ProxySample], None],
        *,
        began_s: float,
    ) -> None:
        self._session = session
        self._watched = watched
        self._on_sample = on_sample
        self._began_s = began_s

    async def run(self) -> None:
        """Sample periodically; a missing page is a gap for that Envoy only."""
        async with asyncio.TaskGroup() as group:
            for proxy, admin in self._watched.admins.items():
                group.create_task(self._proxy(proxy, admin))

    async def _proxy(self, proxy: str, admin: str) -> None:
        turn, ceiling, next_s = 0, None, time.monotonic()
        while True:
            page = await _page(self._session, f"{admin}/clusters?format=json")
            at_s = time.monotonic() - self._began_s
            if page is not None:
                retries = refused = None
                if turn % CEILING_EVERY == 0:
                    runtime = await _page(self._session, f"{admin}/runtime")
                    ceiling = request_limit(self._watched.pool, page, runtime)
                    retries, refused = await self._retries(admin)
                self._on_sample(
                    proxy_sample(
                        self._watched, proxy, page, at_s=at_s, ceiling=ceiling, retries=retries, refused=refused
                    )
                )
                turn += 1
            next_s = max(next_s + SAMPLE_S, time.monotonic())
            await asyncio.sleep(next_s - time.monotonic())

    async def _retries(self, admin: str) -> tuple[int | None, int | None]:
        counted = f"cluster.{self._watched.pool}.upstream_rq_retry"
        page = await _page(self._session, f"{admin}/stats?format=json&filter=^{re.escape(counted)}")
        if page is None:
            return None, None
        said = {one.get("name"): int(one.get("value", 0)) for one in page["stats"]}
        return said.get(counted, 0), said.get(f"{counted}_overflow", 0)


def proxy_sample(
    watched: SampledPool,
    proxy: str,
    clusters: Any,
    *,
    at_s: float,
    ceiling: float | None = None,
    retries: int | None = None,
    refused: int | None = None,
) -> ProxySample:
    """Sample of the pool's engines from an Envoy's clusters page."""
    in_flight, sent, ejected, unhealthy = {}, {}, [], []
    for host in _hosts(watched.pool, clusters):
        engine = _engine(watched, host["address"])
        if engine is None:
            continue
        stats = {one["name"]: int(one.get("value", 0)) for one in host["stats"]}
        in_flight[engine] = stats.get("rq_active", 0)
        sent[engine] = stats.get("rq_total", 0) + stats.get("cx_connect_fail", 0)
        health = host.get("health_status", {})
        if health.get("failed_outlier_check"):
            ejected.append(engine)
        if health.get("failed_active_health_check") or health.get("eds_health_status", "HEALTHY") != "HEALTHY":
            unhealthy.append(engine)
    return ProxySample(
        at_s=at_s,
        proxy=proxy,
        in_flight=in_flight,
        sent=sent,
        ejected=tuple(ejected),
        unhealthy=tuple(unhealthy),
        ceiling=ceiling,
        retries=retries,
        refused=refused,
    )


def request_limit(pool: str, clusters: Any, runtime: Any) -> float | None:
    """Limit in force: the runtime's if set, else the cluster's; None for no limit."""
    entries = {} if runtime is None else runtime.get("entries", {})
    said = entries.get(f"circuit_breakers.{pool}.default.max_requests", {}).get("final_value")
    if said:
        return float(said)
    for cluster in clusters.get("cluster_statuses", []):
        if cluster["name"] == pool:
            for threshold in cluster.get("circuit_breakers", {}).get("thresholds", []):
                limit = int(threshold.get("max_requests", 0))
                if threshold.get("priority", "DEFAULT") == "DEFAULT" and 0 < limit < _NO_LIMIT:
                    return float(limit)
    return None


def _hosts(pool: str, page: Any) -> Sequence[Any]:
    for cluster in page.get("cluster_statuses", []):
        if cluster["name"] == pool:
            return list(cluster.get("host_statuses", []))
    return []


def _engine(watched: SampledPool, address: Mapping[str, Any]) -> str | None:
    if "socket_address" in address:
        host, port = address["socket_address"]["address"], int(address["socket_address"]["port_value"])
        return watched.names.get(f"{host}:{port}") or watched.ports.get(port)
    internal = address.get("envoy_internal_address", {})
    return watched.names.get(str(internal.get("server_listener_name", "")).rpartition("/")[2])


async def _page(session: aiohttp.ClientSession, url: str) -> Any:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=_PAGE_LIMIT_S)) as answer:
            if answer.status == 200:
                return json.loads(await answer.read())
    return None
