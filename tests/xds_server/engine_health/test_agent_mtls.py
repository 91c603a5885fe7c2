"""Agents by mTLS: who may watch, which agents the dialer trusts, and rotation at both ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest

from engine.agent.agent_tls import AgentTls
from engine.report import EngineReport, Verdict
from engine.tls.certificate_files import RotatingKeyPair, read_pair
from engine.tls.grpc_credentials import channel_credentials
from engine.tls.paths import TlsFiles
from engine.watch_server import WatchServer
from tests.xds_server.engine_health.test_agent_dialer import KEY, LIMIT_S, policies, report
from xds_server.auth.lab_ca import LAB_CERTIFICATES, LabCertificate, make_certificates
from xds_server.engine_health.agent_dialer import AgentDialer
from xds_server.engine_health.agent_target import PLAIN_TEXT, AgentCredentials

WHO = (*LAB_CERTIFICATES, LabCertificate(name="named", path="agent", names=("agents.fleet.example",)))


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "certs", WHO, lasts=timedelta(days=1))
    return tmp_path / "certs"


def files(certs: Path, name: str) -> TlsFiles:
    return TlsFiles(certificate=certs / f"{name}.crt", key=certs / f"{name}.key", authorities=certs / "ca.crt")


@contextlib.asynccontextmanager
async def agent(
    certs: Path, *allowed: str, name: str = "agent", plain: bool = False, port: int = 0
) -> AsyncIterator[int]:
    locks = AgentTls(files(certs, name), allowed)
    watch = WatchServer(
        boot_id="b1",
        permits=(lambda _: True) if plain else locks.permits_watch,
        lasts_unix_s=(lambda: None) if plain else locks.validity_unix_s,
    )
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    watch.add_to(server)
    at = f"127.0.0.1:{port}"
    port = server.add_insecure_port(at) if plain else server.add_secure_port(at, locks.grpc_credentials())
    await server.start()
    watch.publish(report())
    try:
        yield port
    finally:
        await server.stop(None)


class Watching:
    def __init__(self, security: AgentCredentials) -> None:
        self.reports: list[EngineReport] = []
        self.dialer = AgentDialer(self.reports.append, watcher="me", security=security)

    @property
    def listens(self) -> bool:
        """Whether a call is under way, answered or not."""
        link = self.dialer._links.get(KEY)
        return link is not None and link.call is not None

    @property
    def trouble(self) -> str:
        return self.dialer.agents()[KEY].trouble if KEY in self.dialer.agents() else ""


@contextlib.asynccontextmanager
async def watching(port: int, security: AgentCredentials) -> AsyncIterator[Watching]:
    made = Watching(security)
    made.dialer.watch(policies(port))
    task = asyncio.create_task(made.dialer.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


def security(keys: RotatingKeyPair, **settings: object) -> AgentCredentials:
    kept = {}

    def current() -> grpc.ChannelCredentials:
        pair = keys.reload()
        if pair not in kept.values():
            kept["pair"], kept["credentials"] = pair, channel_credentials(pair)
        return kept["credentials"]

    return AgentCredentials(current=current, **settings)


async def until(condition: object) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_agent_watch_over_mtls_survives_certificate_rotation(certs: Path) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=2)
    make_certificates(certs, [one for one in WHO if one.name == "server"], lasts=timedelta(hours=1), now=long_ago)
    keys = RotatingKeyPair(files(certs, "server"))
    async with agent(certs) as port, watching(port, security(keys)) as watched:
        # Refused for its own expired certificate; with that it would wait forever.
        await until(lambda: watched.listens)
        async with watching(port, security(RotatingKeyPair(files(certs, "operator")))) as other:
            await until(lambda: other.reports)
        assert not watched.reports
        make_certificates(certs, WHO, lasts=timedelta(days=1))
        watched.dialer.renew()
        await until(lambda: watched.reports)
        assert watched.reports[-1].verdict is Verdict.READY
        said = watched.dialer.agents()[KEY]
        assert said.clock_ahead_s is not None
        assert abs(said.clock_ahead_s) < LIMIT_S
        assert said.certificate_ends_unix_s == int(read_pair(files(certs, "agent")).ends_unix_s)


async def test_agent_authorization_by_client_identity(certs: Path) -> None:
    keys = RotatingKeyPair(files(certs, "proxy"))
    async with (
        agent(certs, "spiffe://switchgear.lab/control-plane") as port,
        watching(port, security(keys)) as watched,
    ):
        await until(lambda: "permission_denied" in watched.trouble)
        assert not watched.reports


async def test_agent_server_certificate_san_is_verified(certs: Path) -> None:
    keys = RotatingKeyPair(files(certs, "server"))
    async with agent(certs, name="named") as port:
        async with watching(port, security(keys, name="agents.fleet.example")) as watched:
            await until(lambda: watched.reports)
        async with watching(port, security(keys)) as watched:
            # It does not prove 127.0.0.1, where it is dialled.
            await until(lambda: watched.listens)
            async with watching(port, security(keys, name="agents.fleet.example")) as other:
                await until(lambda: other.reports)
            assert not watched.reports


async def test_plaintext_agents_need_an_explicit_pool_list(certs: Path) -> None:
    keys = RotatingKeyPair(files(certs, "server"))
    async with agent(certs, plain=True) as port:
        async with watching(port, security(keys, plain_pools=frozenset({"chat"}))) as watched:
            await until(lambda: watched.reports)
        async with watching(port, security(keys)) as strict, watching(port, PLAIN_TEXT) as other:
            await until(lambda: other.reports)
            assert not strict.reports, "there is no fallback"
