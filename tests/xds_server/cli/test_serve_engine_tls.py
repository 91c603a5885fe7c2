"""A whole server asks engines by the certificates in its folder, and says of one that fails what is wrong."""

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from chaos.fake_engine import EngineConfig, FakeEngine
from tests.engine.tls.certificate_fixtures import DAY, certificate

LIMIT_S = 120.0
SWITCHGEAR = str(Path(sys.executable).with_name("switchgear"))
NAME = "engine.example"


def policy(ports: list[int]) -> str:
    endpoints = ", ".join(f"{{address: 127.0.0.1, port: {port}, name: e{at}}}" for at, port in enumerate(ports))
    return f"""\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: chat}}
spec:
  model: fake-model
  slotsPerEngine: 8
  endpoints: [{endpoints}]
  tls: {{secret: engines, serverName: {NAME}}}
"""


@contextlib.asynccontextmanager
async def serving(policies: Path, secrets: Path) -> AsyncIterator[str]:
    """The admin port of a server."""
    process = await asyncio.create_subprocess_exec(
        *(SWITCHGEAR, "serve", "-f", str(policies), "--secrets", str(secrets)),
        *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield json.loads(await asyncio.wait_for(process.stdout.readline(), LIMIT_S))["admin"]
    finally:
        process.kill()
        await process.wait()


async def said(admin: str, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(SWITCHGEAR, *words, "--admin", f"http://{admin}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    answer, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    return answer.decode()


async def test_untrusted_engine_certificate_is_reported_plainly(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)
    certificate(tmp_path, "old", NAME, ago=3 * DAY)
    certificate(tmp_path, "stranger", "stranger.example")
    (tmp_path / "secrets" / "engines").mkdir(parents=True)
    shutil.copy(tmp_path / "ca.crt", tmp_path / "secrets" / "engines" / "ca.crt")
    (tmp_path / "policies").mkdir()
    engines = [
        FakeEngine(
            EngineConfig(
                prefill_s=0.01, tls_cert=str(tmp_path / f"{name}.crt"), tls_key=str(tmp_path / f"{name}.key")
            )
        )
        for name in ("engine", "engine", "engine", "engine", "engine", "old", "stranger")
    ]
    async with contextlib.AsyncExitStack() as stack:
        for one in engines:
            await one.start()
            stack.push_async_callback(one.stop)
        (tmp_path / "policies" / "chat.yaml").write_text(policy([one.port for one in engines]))
        async with serving(tmp_path / "policies", tmp_path / "secrets") as admin:
            async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession(f"http://{admin}") as http:
                health: dict[str, str] = {}
                while [health.get(f"e{at}") for at in (5, 6)] != ["UNHEALTHY", "UNHEALTHY"]:
                    await asyncio.sleep(0.05)
                    rows = (await (await http.get("/v1/engines")).json())["engines"]
                    health = {row["engine"]: row["health"] for row in rows}
            assert {health[f"e{at}"] for at in range(5)} == {"HEALTHY"}
            stranger, told = await asyncio.gather(said(admin, "why", "chat/e6"), said(admin, "doctor"))
            assert f"stranger.example, not for {NAME}" in " ".join(stranger.split())
            assert "certificate of engine chat/e5: expired at" in told
            assert any("certificate or CA has expired" in row["evidence"] for row in rows), rows
