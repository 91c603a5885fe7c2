"""Replicas of one loaded real Envoy: it fails over between them and receives no changed resource."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from chaos.processes import ChildProcess, free_ports
from tests.cluster import Cluster
from tests.with_envoy.serve.conftest import PATIENT, STEADY, Site, document, eventually
from xds_server.k8s.api_resources import ENGINE_POOLS, LEASES

pytestmark = pytest.mark.envoy

COUNTED = (
    "cluster_manager.cluster_added",
    "cluster_manager.cluster_modified",
    "cluster_manager.cluster_removed",
    "cluster_manager.cds.update_success",
    "listener_manager.listener_added",
    "listener_manager.listener_modified",
    "listener_manager.listener_removed",
    "listener_manager.lds.update_success",
    "listener_manager.total_listeners_draining",
    ".rds.",
    "cluster.chat.update_success",
)
"""What grows when Envoy takes over anything but live limits; of ``.rds.`` the updates."""


@dataclass(kw_only=True)
class Replica:
    name: str
    xds: str
    admin: str
    child: ChildProcess


class Service:
    """Where proxies connect, as a Service is: it leads to one replica, and what is open ends when that changes."""

    def __init__(self) -> None:
        self.to: Replica | None = None
        self.address = ""
        self._open: set[asyncio.StreamWriter] = set()

    def lead(self, to: Replica) -> None:
        self.to = to
        for writer in tuple(self._open):
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.to is None:
            writer.close()
            return
        host, _, port = self.to.xds.rpartition(":")
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._open |= {writer, back}
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(_pour(reader, back))
                ways.create_task(_pour(there, writer))
        finally:
            self._open -= {writer, back}
            for one in (writer, back):
                one.close()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    made = Service()
    server = await asyncio.start_server(made.carry, "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made
        for writer in tuple(made._open):
            writer.transport.abort()


async def replica(site: Site, cluster: Cluster, name: str) -> Replica:
    xds, admin = free_ports(2)
    site.xds, site.admin, site.state_dir = f"127.0.0.1:{xds}", f"127.0.0.1:{admin}", site.folder / name
    child = await site.serve(
        *("--identity", name, "--lease", "default/switchgear"),
        source=("--kubernetes", "--kubeconfig", str(cluster.kubeconfig)),
    )
    return Replica(name=name, xds=site.xds, admin=site.admin, child=child)


async def asked(of: Replica, path: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"http://{of.admin}{path}") as answer:
        return await answer.json()


async def serves(one: Replica, node: str) -> None:
    """Return when this replica serves the proxy, and the proxy has all of it."""

    async def so() -> bool:
        proxies = (await asked(one, "/v1/proxies"))["proxies"]
        found = [proxy for proxy in proxies if proxy["node"] == node]
        return bool(found) and all(kind["state"] == "SYNCED" for kind in found[0]["types"])

    await eventually(so, f"{one.name} serves {node}")


async def snapshot(of: Replica) -> dict[tuple[str, str], str]:
    said = await asked(of, "/v1/snapshot?zone=z1&role=gateway")
    return {(one["type"], one["name"]): one["version"] for one in said["resources"]}


async def counters(envoy: Any) -> dict[str, int]:
    found = {}
    for line in (await envoy.get("/stats?filter=update_success|cluster_manager|listener_manager")).splitlines():
        name, _, value = line.partition(": ")
        if name.startswith(COUNTED[:-2]) or name == COUNTED[-1] or (".rds." in name and "update_success" in name):
            found[name] = int(value)
    return found


async def holder(cluster: Cluster) -> str:
    lease = await cluster.api.get(LEASES, "default", "switchgear")
    return str(lease["spec"].get("holderIdentity", "")).partition("_")[0]


async def test_proxy_reconnects_between_replicas_without_a_push(site: Site, cluster: Cluster) -> None:
    await cluster.define()
    await site.start_engines(2)
    await cluster.put(site.pool(probe=PATIENT))
    await cluster.put(site.route())
    await cluster.put(document("ResiliencePolicy", "default", STEADY))
    async with service() as front:
        one = await replica(site, cluster, "one")

        async def writes(name: str) -> bool:
            return await holder(cluster) == name

        await eventually(lambda: writes("one"), "the first replica writes")
        two = await replica(site, cluster, "two")
        front.lead(one)
        site.xds = front.address
        envoy = await site.envoy("n1")
        await site.answered()
        await serves(one, "n1")

        # Both would serve the very same, and both know of one proxy.
        async def alike() -> bool:
            return await snapshot(one) == await snapshot(two)

        await eventually(alike, "the same snapshots")
        load = site.load()
        await load.more(40)

        # It moves, and receives nothing.
        had = await counters(envoy)
        assert set(COUNTED[:-2]) <= had.keys()
        front.lead(two)
        await serves(two, "n1")
        await load.more(40)
        assert await counters(envoy) == had

        # The first ends as in a rolling update. The second has the proxy, and now writes, too.
        assert await site.stop(one.child) == 0
        await eventually(lambda: writes("two"), "the second replica writes")
        three = await replica(site, cluster, "three")
        assert await counters(envoy) == had

        # The second is killed in mid-traffic.
        two.child.signal_group(signal.SIGKILL)
        await two.child.wait()
        await load.more(20)
        front.lead(three)
        await serves(three, "n1")
        await load.more(20)
        assert await counters(envoy) == had
        await load.end()
        assert load.outcomes
        assert not load.failed

        status = (await cluster.api.get(ENGINE_POOLS, "default", "chat"))["status"]
        held = {said["type"]: said["status"] for said in status["conditions"]}
        assert (held["Accepted"], held["Programmed"]) == ("True", "True")
        assert "Healthy" in held
        assert await site.stop(three.child) == 0
