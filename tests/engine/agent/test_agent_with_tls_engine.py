"""An agent with a TLS engine: judged as any other; an untrusted certificate is reported plainly."""

import asyncio
import sys
from pathlib import Path

import pytest

from chaos.fake_engine import EngineHang
from engine.agent.agent_config import agent_config
from engine.agent.agent_tls import engine_client_tls
from engine.agent.config_error import AgentConfigError
from engine.tls.paths import TrustFiles
from tests.engine.agent.conftest import LIMIT_S, StartAgent, StartEngine
from tests.engine.tls.certificate_fixtures import certificate
from tests.unstarved import without_starvation

pytestmark = pytest.mark.timeout(400)

NAME = "engine.example"


def asked(folder: Path, *more: str) -> tuple[str, ...]:
    return ("--gpu", "off", "--engine-ca", f"{folder}/ca.crt", "--engine-server-name", NAME, *more)


async def test_a_tls_engine_is_judged_through_a_rotation_and_a_hang(
    start_agent: StartAgent, start_engine: StartEngine, tmp_path: Path
) -> None:
    certificate(tmp_path, "engine", NAME)
    certificate(tmp_path, "agent", "agent")
    engine = await start_engine(
        tls_cert=f"{tmp_path}/engine.crt", tls_key=f"{tmp_path}/engine.key", tls_client_ca=f"{tmp_path}/ca.crt"
    )
    assert engine.url.startswith("https://")
    proof = ("--engine-certificate", f"{tmp_path}/agent.crt", "--engine-key", f"{tmp_path}/agent.key")
    agent = await start_agent(
        engine.url, *asked(tmp_path, *proof), "--interval", "50ms", "--idle-interval", "50ms"
    )
    await agent.until("ready")

    async def look() -> tuple[str, int]:
        await agent.until("ready")
        certificate(tmp_path, "engine", NAME)
        certificate(tmp_path, "agent", "agent")
        said = (await agent.report())["sequence"]
        _, report = await agent.until_report(lambda report: report["sequence"] > said + 10)
        return report["verdict"], report["boot"]["number"]

    assert await without_starvation(look) == ("ready", 1)
    await engine.set_fault(EngineHang())
    await agent.until("hung")
    await engine.heal()
    await agent.until("ready")


async def test_wrong_certificate_name_is_reported_and_requests_no_restart(
    start_agent: StartAgent, start_engine: StartEngine, tmp_path: Path
) -> None:
    certificate(tmp_path, "engine", "stranger.example")
    engine = await start_engine(tls_cert=f"{tmp_path}/engine.crt", tls_key=f"{tmp_path}/engine.key")
    agent = await start_agent(
        engine.url, *asked(tmp_path), "--idle-interval", "50ms", "--restart-after-error", "0s"
    )
    _, report = await agent.until("degraded")
    assert report["doubt"] == "refused"
    assert f"stranger.example, not for {NAME}" in report["evidence"]
    assert report["reasons"][0]["reading"] == "certificate"
    await agent.until_probes(503, 200, 503)
    certificate(tmp_path, "engine", NAME)
    await agent.until("ready")


def test_https_engine_needs_a_ca() -> None:
    def refused(*words: str) -> str:
        flags = dict(zip(words[::2], words[1::2], strict=True))
        with pytest.raises(AgentConfigError) as error:
            agent_config(flags, environment={})
        return str(error.value)

    https = ("engine", "https://127.0.0.1:8000")
    assert "--engine https://127.0.0.1:8000 needs --engine-ca" in refused(*https)
    assert "--engine-ca needs TLS, and --engine is http://127.0.0.1:8000" in refused("engine_ca", "ca.crt")
    assert "missing --engine-key" in refused(*https, "engine_ca", "ca.crt", "engine_certificate", "x")
    assert "missing --engine-certificate" in refused(*https, "engine_ca", "ca.crt", "engine_key", "x")
    made = agent_config(dict([https, ("engine_ca", "ca.crt")]), environment={})
    assert made.engine_trust == TrustFiles(authorities=Path("ca.crt"))
    assert str(made.engine) == "https://127.0.0.1:8000"


def test_a_file_that_cannot_be_used_is_named_with_its_flag(tmp_path: Path) -> None:
    certificate(tmp_path, "agent", "agent")
    certificate(tmp_path, "other", "other")
    ca, agent, own, other = (tmp_path / name for name in ("ca.crt", "agent.crt", "agent.key", "other.key"))
    for files, words in (
        (TrustFiles(authorities=tmp_path / "no.crt"), f"--engine-ca: {tmp_path}/no.crt: No such file"),
        (TrustFiles(authorities=other), f"--engine-ca: {other}: contains no PEM certificate"),
        (
            TrustFiles(authorities=ca, certificate=other, key=own),
            f"--engine-certificate: {other}: contains no PEM",
        ),
        (TrustFiles(authorities=ca, certificate=agent, key=other), f"--engine-key: {other}: not the key of"),
    ):
        with pytest.raises(AgentConfigError) as error:
            engine_client_tls(files)
        assert words in str(error.value)


async def test_an_agent_does_not_start_by_files_that_are_not_there(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.agent", "run", "--engine", "https://127.0.0.1:1", "--http", "127.0.0.1:0"),
        *("--grpc", "127.0.0.1:0", "--engine-ca", f"{tmp_path}/no.crt"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 2
    assert f"Error: --engine-ca: {tmp_path}/no.crt: No such file" in said.decode()
