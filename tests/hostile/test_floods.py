"""A flood measures the others: honest proxies on the same host, operators and telemetry stay near calm."""

import asyncio
import contextlib
import statistics
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import pytest

from benchmarks.soak.attack_corpus import ENEMY, proxy_attacks
from tests.eventually import eventually
from tests.hostile.conftest import LIMIT_S, Peer, Server, connected
from xds_server.telemetry.access_log_service import METHOD, AccessLogs
from xds_server.translate.access_log_config import LOG_NAME

PROXIES = 50
ROUNDS = 5
READS = 5
REPORT_EACH_S = 2.0
BOUND = 6.0
"""Times calm: on a busy machine of two cores, one of them used by the flood."""


@dataclass(kw_only=True)
class Fleet:
    """Honest proxies, each with an access log stream."""

    server: Server
    peers: list[Peer]
    logs: list["grpc.aio.StreamStreamCall[bytes, bytes]"] = field(default_factory=list)

    async def round_s(self) -> float:
        """Time until all accepted an edit, the server was found ready, and telemetry of all arrived."""
        began_s = time.monotonic()
        before = [one.acks for one in self.peers]
        self.server.edit()
        await self._report()
        reported_s = time.monotonic()

        def accepted() -> bool:
            return all(one.acks > count for one, count in zip(self.peers, before, strict=True))

        for _ in range(READS):
            await asyncio.to_thread(self._ready)
        await eventually(accepted, "every proxy accepts the edit", LIMIT_S)

        async def heard() -> bool:
            nonlocal reported_s
            ages = await asyncio.to_thread(self._ages_s)
            passed_s = time.monotonic() - began_s
            if len(ages) >= PROXIES and all(age_s < passed_s for age_s in ages.values()):
                return True
            if time.monotonic() - reported_s > REPORT_EACH_S:
                # The server may drop entries of a host that used up its budget; proxies send more.
                await self._report()
                reported_s = time.monotonic()
            return False

        await eventually(heard, "telemetry of every proxy arrives", LIMIT_S)
        return time.monotonic() - began_s

    async def _report(self) -> None:
        for call in self.logs:
            await call.write(log())

    def _ready(self) -> None:
        with urllib.request.urlopen(f"http://{self.server.admin}/readyz", timeout=LIMIT_S) as answer:
            assert answer.status == 200

    def _ages_s(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{self.server.admin}/metrics", timeout=LIMIT_S) as answer:
            lines = answer.read().decode().splitlines()
        return {
            line: float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("switchgear_telemetry_age_seconds{")
            and 'signal="access_log"' in line
            and ENEMY not in line
        }


def log(node: str = "") -> bytes:
    message = AccessLogs()
    if node:
        message.identifier.node.id, message.identifier.log_name = node, LOG_NAME
    entry = message.http_logs.log_entry.add()
    entry.common_properties.upstream_cluster = "chat"
    return bytes(message.SerializeToString())


@contextlib.asynccontextmanager
async def fleet_of(server: Server) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        nodes = [f"honest-{number}" for number in range(PROXIES)]
        peers = [await stack.enter_async_context(connected(server.xds, node)) for node in nodes]
        behaving = [asyncio.create_task(peer.behave()) for peer in peers]
        try:
            await eventually(lambda: all(peer.acks for peer in peers), "every proxy is served", LIMIT_S)
            fleet = Fleet(server=server, peers=peers)
            for node in nodes:
                made = await stack.enter_async_context(connected(server.xds, node, METHOD))
                await made.call.write(log(node))
                fleet.logs.append(made.call)
            yield fleet
            assert not any(one.done() for one in behaving), "every proxy was served to the end"
            assert not any(one.done() for one in fleet.logs), "and heard"
        finally:
            for one in behaving:
                one.cancel()
            await asyncio.wait(behaving)


@contextlib.asynccontextmanager
async def enemy(server: Server, name: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "benchmarks.soak.enemy", server.xds, server.admin, "--only", name),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), LIMIT_S)
        yield
        assert process.returncode is None, "it attacked to the end"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize("name", proxy_attacks(ENEMY))
async def test_flood_leaves_other_proxies_operators_and_telemetry(server: Server, name: str) -> None:
    async with fleet_of(server) as fleet:
        await fleet.round_s()
        calm_s = statistics.median([await fleet.round_s() for _ in range(ROUNDS)])
        async with enemy(server, name):
            flood_s = statistics.median([await fleet.round_s() for _ in range(ROUNDS)])
        assert flood_s < BOUND * calm_s, f"{flood_s:.2f} s a round, {calm_s:.2f} s when calm"
