"""Engines in a distant region: a TLS handshake of 300 ms, with default policies."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.with_envoy.serve.conftest import Site, document
from tests.with_envoy.serve.test_serve_sds_rotation import TLS, Certs, Engine

pytestmark = pytest.mark.envoy

HANDSHAKE_S = 0.3
REQUESTS = 16


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """Ends its connection after each answer, so each request needs a handshake."""
    made = Engine(Certs(tmp_path / "one").folder)
    await made.start()
    yield made
    await made.stop()


@contextlib.asynccontextmanager
async def distant(port: int) -> AsyncIterator[int]:
    """A port whose first bytes from ``port`` come 300 ms late, as the server's half of a handshake does."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay_s: float) -> None:
            with contextlib.suppress(ConnectionError):
                while chunk := await source.read(65536):
                    await asyncio.sleep(delay_s)
                    delay_s = 0.0
                    target.write(chunk)
                    await target.drain()
            target.close()

        await asyncio.gather(copy(reader, back, 0.0), copy(there, writer, HANDSHAKE_S))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_default_connect_limit_allows_a_handshake_of_300_ms(
    site: Site, engine: Engine, tmp_path: Path
) -> None:
    Certs(tmp_path / "one").put(tmp_path / "secrets" / "engines")
    async with distant(engine.port) as port:
        spec = {
            "model": "fake-model",
            "endpoints": [{"address": "127.0.0.1", "port": port, "name": "e"}],
            "probe": {"enabled": False},
            "tls": TLS,
        }
        site.write("all.yaml", document("EnginePool", "chat", spec), site.route())
        await site.serve("--secrets", str(tmp_path / "secrets"))
        envoy = await site.envoy("n1")
        await site.answered()
        answered = len(engine.seen)
        assert [(await site.ask())[0] for _ in range(REQUESTS)] == [200] * REQUESTS
        assert len(engine.seen) == answered + REQUESTS, "each with a handshake of its own"
        failed = "cluster.chat.upstream_cx_connect_fail"
        assert (await envoy.stats(failed)).get(failed, 0) == 0
