"""What ``doctor`` says of clocks and certificates of agents and engines."""

import asyncio
import ssl
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chaos.fake_engine import EngineConfig, FakeEngine
from engine.watch_server import CERTIFICATE_KEY, CLOCK_KEY
from tests.engine.tls.certificate_fixtures import DAY, certificate
from tests.xds_server.admin_api import rows
from xds_server.admin_api.status_types import EngineStatus
from xds_server.cli.peer_certificates import CertificateValidity, certificate_validity, on_agents, on_certificates
from xds_server.diagnosis.check_result import CheckState
from xds_server.engine_health.agent_metadata import AgentMetadata, read_agent_metadata

NOW_S = 1_800_000_000.0
DAY_S = DAY.total_seconds()


def engine(name: str = "e0", **agent: Any) -> EngineStatus:
    return rows.engine_status(name, pool="pool", agent=rows.agent_status(**agent) if agent else None)


@pytest.mark.parametrize(
    ("metadata", "known"),
    [
        ((), AgentMetadata()),
        (((CLOCK_KEY, f"{NOW_S + 7:.3f}"),), AgentMetadata(clock_ahead_s=7.0)),
        (((CLOCK_KEY, "nan"), (CERTIFICATE_KEY, "inf 3")), AgentMetadata()),
        (((CLOCK_KEY, "soon"), (CERTIFICATE_KEY, "5")), AgentMetadata()),
        (((CLOCK_KEY, b"\xff"), (CERTIFICATE_KEY, "9 5")), AgentMetadata()),
        (((CERTIFICATE_KEY, "5 9"),), AgentMetadata(certificate_begins_unix_s=5.0, certificate_ends_unix_s=9.0)),
        (((CLOCK_KEY, "-1"), (CLOCK_KEY, "9" * 400)), AgentMetadata()),
    ],
)
def test_what_an_agent_says_of_itself_is_taken_for_what_can_be(metadata: Any, known: AgentMetadata) -> None:
    assert read_agent_metadata(metadata, NOW_S) == known


def test_agents_that_tell_nothing_are_not_spoken_of() -> None:
    assert list(on_agents([engine(), engine(clock_ahead_s=None)], NOW_S)) == []


def test_agent_clocks_are_compared_with_the_server() -> None:
    (fine,) = on_agents([engine(clock_ahead_s=0.4), engine("e1", clock_ahead_s=-2.0)], NOW_S)
    assert (fine.state, fine.sentence) == (CheckState.OK, "2 agree with the server")
    (apart,) = on_agents([engine(clock_ahead_s=0.4), engine("e1", clock_ahead_s=-90.2)], NOW_S)
    assert (apart.state, apart.code) == (CheckState.WARN, "SG232")
    assert apart.subject == "clock of the agent of pool/e1"
    assert apart.sentence.startswith("90 s behind the server's clock")


@pytest.mark.parametrize(
    ("begins_s", "ends_s", "state", "code"),
    [(-80, 3, CheckState.WARN, "SG211"), (-80, -1, CheckState.FAIL, "SG212"), (1, 80, CheckState.FAIL, "SG232")],
)
def test_ending_certificates_are_reported_early(
    begins_s: float, ends_s: float, state: CheckState, code: str
) -> None:
    begins, ends = NOW_S + begins_s * DAY_S, NOW_S + ends_s * DAY_S
    told = engine(certificate_begins_unix_s=begins, certificate_ends_unix_s=ends)
    (of_agent,) = on_agents([told], NOW_S)
    (of_engine,) = on_certificates(
        [(engine(), CertificateValidity(begins_unix_s=begins, ends_unix_s=ends))], NOW_S
    )
    assert (of_agent.state, of_agent.code, of_agent.subject) == (
        state,
        code,
        "certificate of the agent of pool/e0",
    )
    assert (of_engine.state, of_engine.code, of_engine.subject) == (state, code, "certificate of engine pool/e0")
    assert told.agent is not None
    assert list(on_agents([replace(told, agent=replace(told.agent, connected=False))], NOW_S)) == []


def test_valid_certificates_give_one_ok() -> None:
    well = CertificateValidity(begins_unix_s=NOW_S - DAY_S, ends_unix_s=NOW_S + 80 * DAY_S)
    (said,) = on_certificates([(engine("a"), well), (engine("b"), well), (engine("c"), None)], NOW_S)
    assert (said.state, said.sentence) == (CheckState.OK, "seen at pool/a, pool/b, none expires soon")
    assert list(on_certificates([(engine(), None)], NOW_S)) == []


async def test_engine_shows_its_certificate_and_plain_text_none(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", "engine.example", lasts=timedelta(hours=1), ago=2 * DAY)
    files = {"tls_cert": str(tmp_path / "engine.crt"), "tls_key": str(tmp_path / "engine.key")}
    for config, ended in ((EngineConfig(**files), True), (EngineConfig(), None)):
        one = FakeEngine(config)
        await one.start()
        try:
            seen = await asyncio.to_thread(certificate_validity, "127.0.0.1", one.port, 30.0)
        finally:
            await one.stop()
        assert (None if seen is None else seen.ends_unix_s < time.time()) is ended


async def test_unreadable_certificate_does_not_stop_doctor(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", "engine.example")
    plain = ssl.PEM_cert_to_DER_cert((tmp_path / "engine.crt").read_text())
    # An invalid version; the signature is not checked here.
    odd = plain.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020109"), 1)
    (tmp_path / "engine.crt").write_text(ssl.DER_cert_to_PEM_cert(odd))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "engine.crt", tmp_path / "engine.key")

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        assert await asyncio.to_thread(certificate_validity, "127.0.0.1", port, 30.0) is None
