"""Agents by mTLS: who may watch, whom the dialer believes, and a rotation of both ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest

from engine.agent.locks import Locks
from engine.report import EngineReport, Verdict
from engine.tls.files import Rotating, read_pair
from engine.tls.grpc_credentials import channel_credentials
from engine.tls.paths import TlsFiles
from engine.watch_server import WatchServer
from tests.xds_server.sources.test_agents import KEY, LIMIT_S, policies, report
from xds_server.access.lab_authority import EVERYBODY, Wanted, make
from xds_server.sources.agents import AgentDialer
from xds_server.sources.targets import PLAIN_TEXT, Security

WHO = (*EVERYBODY, Wanted(name="named", path="agent", names=("agents.fleet.example",)))


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make(tmp_path / "certs", WHO, lasts=timedelta(days=1))
    return tmp_path / "certs"


def files(certs: Path, name: str) -> TlsFiles:
    return TlsFiles(certificate=certs / f"{name}.crt", key=certs / f"{name}.key", authorities=certs / "ca.crt")


@contextlib.asynccontextmanager
async def agent(
    certs: Path, *allowed: str, name: str = "agent", plain: bool = False, port: int = 0
) -> AsyncIterator[int]:
    locks = Locks(files(certs, name), allowed)
    watch = WatchServer(
        boot_id="b1",
        permits=(lambda _: True) if plain else locks.lets_watch,
        lasts_unix_s=(lambda: None) if plain else locks.lasts_unix_s,
    )
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    watch.add_to(server)
    at = f"127.0.0.1:{port}"
    port = server.add_insecure_port(at) if plain else server.add_secure_port(at, locks.for_grpc())
    await server.start()
    watch.publish(report())
    try:
        yield port
    finally:
        await server.stop(None)


class Watching:
    def __init__(self, security: Security) -> None:
        self.reports: list[EngineReport] = []
        self.dialer = AgentDialer(self.reports.append, watcher="me", security=security)

    @property
    def listens(self) -> bool:
        """Whether a call is under way, answered or not."""
        link = self.dialer._links.get(KEY)
        return link is not None and link.limit is not None

    @property
    def trouble(self) -> str:
        return self.dialer.agents()[KEY].trouble if KEY in self.dialer.agents() else ""


@contextlib.asynccontextmanager
async def watching(port: int, security: Security) -> AsyncIterator[Watching]:
    made = Watching(security)
    made.dialer.watch(policies(port))
    task = asyncio.create_task(made.dialer.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


def security(keys: Rotating, **settings: object) -> Security:
    kept = {}

    def current() -> grpc.ChannelCredentials:
        pair = keys.look()
        if pair not in kept.values():
            kept["pair"], kept["credentials"] = pair, channel_credentials(pair)
        return kept["credentials"]

    return Security(current=current, **settings)


async def until(condition: object) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_an_agent_is_heard_by_mtls_and_a_rotated_dialer_gets_back_in(certs: Path) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=2)
    make(certs, [one for one in WHO if one.name == "server"], lasts=timedelta(hours=1), now=long_ago)
    keys = Rotating(files(certs, "server"))
    async with agent(certs) as port, watching(port, security(keys)) as watched:
        # Refused for its own certificate, which has ended; with that it would wait for ever.
        await until(lambda: watched.listens)
        async with watching(port, security(Rotating(files(certs, "operator")))) as other:
            await until(lambda: other.reports)
        assert not watched.reports
        make(certs, WHO, lasts=timedelta(days=1))
        watched.dialer.renew()
        await until(lambda: watched.reports)
        assert watched.reports[-1].verdict is Verdict.READY
        said = watched.dialer.agents()[KEY]
        assert said.clock_ahead_s is not None
        assert abs(said.clock_ahead_s) < LIMIT_S
        assert said.certificate_ends_unix_s == int(read_pair(files(certs, "agent")).ends_unix_s)


async def test_an_agent_says_nothing_to_who_is_not_on_its_list(certs: Path) -> None:
    keys = Rotating(files(certs, "proxy"))
    async with (
        agent(certs, "spiffe://switchgear.lab/control-plane") as port,
        watching(port, security(keys)) as watched,
    ):
        await until(lambda: "permission_denied" in watched.trouble)
        assert not watched.reports


async def test_an_agent_proves_the_name_it_should(certs: Path) -> None:
    keys = Rotating(files(certs, "server"))
    async with agent(certs, name="named") as port:
        async with watching(port, security(keys, name="agents.fleet.example")) as watched:
            await until(lambda: watched.reports)
        async with watching(port, security(keys)) as watched:
            # It does not prove 127.0.0.1, where it is dialled.
            await until(lambda: watched.listens)
            async with watching(port, security(keys, name="agents.fleet.example")) as other:
                await until(lambda: other.reports)
            assert not watched.reports


async def test_plain_text_only_where_the_pool_is_named(certs: Path) -> None:
    keys = Rotating(files(certs, "server"))
    async with agent(certs, plain=True) as port:
        async with watching(port, security(keys, plain_pools=frozenset({"chat"}))) as watched:
            await until(lambda: watched.reports)
        async with watching(port, security(keys)) as strict, watching(port, PLAIN_TEXT) as other:
            await until(lambda: other.reports)
            assert not strict.reports, "no falling back"
