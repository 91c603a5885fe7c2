"""What Envoys and control plane say of themselves while the experiment runs, a few times a second.

The pages are small (some 2 ms of an Envoy's main thread, none of its workers), and what is read is what an
operator could read: nothing here is told to anybody.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.failover.fleet import Fleet
from benchmarks.failover.history import ProxySample, Use, Verdict
from benchmarks.failover.sides import Side
from chaos.lab.static_envoy import POOL
from chaos.processes import Child

SAMPLE_S: Final = 0.1
CEILING_EACH: Final = 5
"""Every so many samples the runtime, which is a larger page, is asked for the ceiling."""

_TICKS_PER_S: Final = 100


class Watch:
    """``await watch(...)`` in a task until it is cancelled; then read ``samples`` and ``verdicts``."""

    def __init__(self, session: aiohttp.ClientSession, side: Side, fleet: Fleet) -> None:
        self.samples: list[ProxySample] = []
        self.verdicts: list[Verdict] = []
        self._session = session
        self._side = side
        self._by_port = {port: engine for engine, port in enumerate(fleet.ports)}
        self._by_name = {name: engine for engine, name in enumerate(fleet.names)}
        self._known: dict[int, str] = {}
        self._ceilings: dict[int, float | None] = {}

    async def run(self) -> None:
        """Look again and again; a page that does not come is a gap in the record."""
        turn = 0
        next_s = time.monotonic()
        while True:
            looks = [self._proxy(proxy, turn) for proxy in range(len(self._side.admins))]
            if self._side.control_plane:
                looks.append(self._control_plane())
            await asyncio.gather(*looks)
            turn += 1
            next_s = max(next_s + SAMPLE_S, time.monotonic())
            await asyncio.sleep(next_s - time.monotonic())

    async def _proxy(self, proxy: int, turn: int) -> None:
        admin = self._side.admins[proxy]
        page = await self._page(f"{admin}/clusters?format=json")
        if page is None:
            return
        at_s = time.monotonic()
        if turn % CEILING_EACH == 0:
            self._ceilings[proxy] = _ceiling(page, await self._page(f"{admin}/runtime"))
        in_flight, sent = {}, {}
        for host in _hosts(page):
            engine = self._engine(host["address"])
            if engine is not None:
                stats = {one["name"]: int(one.get("value", 0)) for one in host["stats"]}
                in_flight[engine] = stats.get("rq_active", 0)
                sent[engine] = stats.get("rq_total", 0) + stats.get("cx_connect_fail", 0)
        retries, refused = await self._retries(admin) if turn % CEILING_EACH == 0 else (-1, -1)
        self.samples.append(
            ProxySample(
                at_s=at_s,
                proxy=proxy,
                in_flight=in_flight,
                sent=sent,
                retries=retries,
                refused=refused,
                ceiling=self._ceilings.get(proxy),
            )
        )

    async def _retries(self, admin: str) -> tuple[int, int]:
        names = [f"cluster.{POOL}.upstream_rq_retry", f"cluster.{POOL}.upstream_rq_retry_overflow"]
        page = await self._page(f"{admin}/stats?format=json&filter=^cluster\\.{POOL}\\.upstream_rq_retry")
        if page is None:
            return -1, -1
        said = {one.get("name"): int(one.get("value", 0)) for one in page["stats"]}
        return said.get(names[0], 0), said.get(names[1], 0)

    async def _control_plane(self) -> None:
        page = await self._page(f"{self._side.control_plane}/v1/engines")
        if page is None:
            return
        at_s = time.monotonic()
        for one in page["engines"]:
            engine, health = self._by_name.get(one["engine"]), str(one["health"])
            if engine is not None and self._known.get(engine) != health:
                self._known[engine] = health
                self.verdicts.append(
                    Verdict(at_s=at_s, engine=engine, health=health, reason=str(one.get("reason", "")))
                )

    def _engine(self, address: Mapping[str, Any]) -> int | None:
        if "socket_address" in address:
            return self._by_port.get(int(address["socket_address"]["port_value"]))
        internal = address.get("envoy_internal_address", {})
        return self._by_name.get(str(internal.get("server_listener_name", "")).rpartition("/")[2])

    async def _page(self, url: str) -> Any:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=2.0)) as answer:
                if answer.status == 200:
                    return json.loads(await answer.read())
        return None


def _hosts(page: Any) -> Sequence[Any]:
    for cluster in page.get("cluster_statuses", []):
        if cluster["name"] == POOL:
            return list(cluster.get("host_statuses", []))
    return []


def _ceiling(clusters: Any, runtime: Any) -> float | None:
    """The limit in force: the runtime's where it says one, else the cluster's own; None for none."""
    entries = {} if runtime is None else runtime.get("entries", {})
    said = entries.get(f"circuit_breakers.{POOL}.default.max_requests", {}).get("final_value")
    if said:
        return float(said)
    for cluster in clusters.get("cluster_statuses", []):
        if cluster["name"] == POOL:
            for threshold in cluster.get("circuit_breakers", {}).get("thresholds", []):
                limit = int(threshold.get("max_requests", 0))
                if threshold.get("priority", "DEFAULT") == "DEFAULT" and 0 < limit < 1_000_000:
                    return float(limit)
    return None


class Meter:
    """CPU time of children and of the machine between two moments."""

    def __init__(self, children: Mapping[str, Sequence[Child]]) -> None:
        self._children = children
        self._began_s = time.monotonic()
        self._own_s = time.process_time()
        self._machine = _machine_s()
        self._used = {child: _cpu_s(child.pid) for some in children.values() for child in some}

    def use(self) -> Use:
        """Since it was made. A child that is gone counts nothing."""
        elapsed_s = time.monotonic() - self._began_s
        shares = {
            name: 100.0 * sum(max(0.0, _cpu_s(one.pid) - self._used[one]) for one in some) / elapsed_s
            for name, some in self._children.items()
            if some
        }
        shares["load generator"] = 100.0 * (time.process_time() - self._own_s) / elapsed_s
        busy_s, all_s = (after - before for after, before in zip(_machine_s(), self._machine, strict=True))
        cores = all_s / elapsed_s
        return Use(
            processes=shares,
            machine=100.0 * busy_s / all_s if all_s else 0.0,
            ours=sum(shares.values()) / cores if cores else 0.0,
        )


def _cpu_s(pid: int) -> float:
    # Behind the name in parentheses: state is field 3, utime and stime are 14 and 15 (proc(5)).
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _machine_s() -> tuple[float, float]:
    """Busy seconds and all seconds of all cores since boot (proc(5))."""
    user, nice, system, idle, iowait, irq, softirq, steal = (
        int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    busy = user + nice + system + irq + softirq + steal
    return busy / _TICKS_PER_S, (busy + idle + iowait) / _TICKS_PER_S
