"""The wiretap between real Envoys and the real control plane: what it sees, and what it can spoil."""

import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import yaml

from chaos.history.history_events import ConfigPush, ConfigReply
from chaos.processes import ChildProcesses, free_ports
from chaos.xds_tap.tap_events import tap_events
from tests.with_envoy.serve.conftest import LIMIT_S, Site, eventually

pytestmark = pytest.mark.envoy

TYPES = {"cds", "eds", "lds", "rds", "rtds"}


class Wiretap:
    """Between ``site.xds`` and Envoys called p0 (incremental) and p1 (state of the world)."""

    def __init__(self, ready: Any, session: aiohttp.ClientSession) -> None:
        self._control = ready["control"]
        self.ports: dict[str, int] = ready["ports"]
        self._session = session

    async def order(self, name: str, **order: Any) -> None:
        async with self._session.put(f"{self._control}/orders/{name}", json=order) as answer:
            assert answer.status == 200, await answer.text()

    async def take_back(self, name: str) -> None:
        async with self._session.delete(f"{self._control}/orders/{name}") as answer:
            assert answer.status == 200

    async def seen(self) -> list[ConfigPush | ConfigReply]:
        async with self._session.get(f"{self._control}/seen") as answer:
            return list(tap_events(await answer.text(), 0.0))

    async def answered(self, proxy: str, *, refused: bool) -> set[str]:
        """Types of pushes that an Envoy has accepted, or refused."""
        return {
            one.type
            for one in await self.seen()
            if isinstance(one, ConfigReply) and one.proxy == proxy and bool(one.error) == refused
        }


@contextlib.asynccontextmanager
async def wiretap(site: Site, *proxies: str) -> AsyncIterator[Wiretap]:
    command = [sys.executable, "-m", "chaos.xds_tap"]
    for proxy in proxies:
        command += ["--link", f"xds:{proxy}={site.xds}"]
    async with ChildProcesses() as children, aiohttp.ClientSession() as session:
        child = await children.start("wiretap", command, ready_within_s=LIMIT_S)
        yield Wiretap(child.ready, session)


async def test_corrupted_push_is_nacked_and_proxies_keep_the_previous_version(site: Site) -> None:
    await site.start_engines(2)
    site.write("all.yaml", site.pool(engines=site.engines[:1]), site.route())
    await site.serve()
    async with wiretap(site, "p0", "p1") as tap:
        for proxy, flags in {"p0": (), "p1": ("--protocol", "sotw", "--listen-address", "127.0.0.2")}.items():
            server = f"127.0.0.1:{tap.ports[f'xds:{proxy}']}"
            code, printed, error = await site.switchgear(
                *("bootstrap", "--node", proxy, "--zone", "z1", "--server", server, "--admin-port", "0", *flags)
            )
            assert code == 0, error
            await site._start_envoy(yaml.safe_load(printed))
        await site.answered()
        for proxy in ("p0", "p1"):

            async def all_taken(proxy: str = proxy) -> bool:
                return await tap.answered(proxy, refused=False) >= TYPES - {"rtds"}

            await eventually(all_taken, f"{proxy} has taken everything")
            assert await tap.answered(proxy, refused=True) == set()
            for kind in TYPES:
                await tap.order(f"{proxy}-{kind}", proxy=proxy, corrupt=kind)

        # Something of every type becomes different at once: an engine, limits, routes, a cluster, a listener.
        site.write(
            "all.yaml",
            site.pool(),
            site.route(match={"headers": [{"name": "x-tier", "exact": "gold"}]}),
            site.pool("other", site.engines[1:]),
            site.route("other", "other", listener={"port": free_ports(1)[0], "address": "127.0.0.1"}),
        )

        async def all_refused() -> bool:
            # What one has refused is not sent to the other any more.
            first, second = [await tap.answered(proxy, refused=True) for proxy in ("p0", "p1")]
            return bool(first and second) and first | second == TYPES

        await eventually(all_refused, "everything has been refused")
        # The new route would not match, and the new engine would answer some of these.
        assert {await site.ask() for _ in range(8)} == {(200, "e0")}


async def test_lost_or_false_telemetry_does_not_hurt_traffic(site: Site) -> None:
    await site.start_engines(2)
    site.write("pool.yaml", site.pool())
    site.write("route.yaml", site.route())
    await site.serve()
    async with wiretap(site, "p0") as tap:
        site.xds = f"127.0.0.1:{tap.ports['xds:p0']}"
        await site.envoy("p0")
        await site.answered()
        load = site.load()

        async def silent_s() -> float:
            return await site.metric("switchgear_telemetry_age_seconds", without="load_report")

        async def heard() -> bool:
            return 0 < await silent_s() < 2

        async def missed() -> bool:
            return await silent_s() > 2

        async def believed() -> bool:
            engines = (await site.get("/v1/engines"))["engines"]
            return all((one["error_percent"] or 0) > 90 for one in engines)

        await eventually(heard, "access logs come")
        await tap.order("telemetry", proxy="p0", lost=True)
        await eventually(missed, "no access log comes although there are calls")
        await tap.order("telemetry", proxy="p0", says="all-failed")
        await eventually(believed, "every call is thought to have failed")
        # Who believes it may keep callers out.
        assert not [one for one in await load.end() if one.status not in (200, 503)]
