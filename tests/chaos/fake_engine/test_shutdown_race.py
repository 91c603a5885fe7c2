"""Calls during an engine's shutdown are ended."""

import asyncio
import contextlib
import socket

import pytest

from chaos.fake_engine import EngineConfig, EngineCrash, FakeEngine

LIMIT_S = 60.0


@pytest.mark.parametrize("crashed", [True, False], ids=["a crash", "a stop"])
@pytest.mark.parametrize("turns", range(6))
async def test_call_during_shutdown_is_ended(turns: int, *, crashed: bool) -> None:
    """``turns`` of the event loop lie between the call and the end: one finds it accepted, and not made yet."""
    engine = FakeEngine(EngineConfig(name="e"))
    await engine.start()
    with socket.create_connection(("127.0.0.1", engine.port)) as caller:
        caller.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await (engine.set_fault(EngineCrash()) if crashed else engine.stop())
        with contextlib.suppress(ConnectionResetError):
            told = asyncio.get_running_loop().sock_recv(caller, 1)
            assert await asyncio.wait_for(told, LIMIT_S) == b""
    await engine.stop()
