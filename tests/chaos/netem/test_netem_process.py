"""The wire as a process: it says where it listens, takes orders over HTTP, and ends on SIGTERM."""

import asyncio
import sys

import aiohttp
import pytest

from chaos.netem.__main__ import main
from chaos.processes import ChildProcesses


async def until_closed(session: aiohttp.ClientSession, control: str) -> dict[str, dict[str, object]]:
    """The links as soon as no connection goes through them."""
    async with asyncio.timeout(60):
        while True:
            async with session.get(f"{control}/links") as reply:
                links: dict[str, dict[str, object]] = await reply.json()
            if not any(link["open"] for link in links.values()):
                return links
            await asyncio.sleep(0.02)


async def test_process_relays_bytes_and_applies_rules() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        writer.close()

    async def asked(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        try:
            return await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()

    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0) as server,
        ChildProcesses() as children,
        aiohttp.ClientSession() as session,
    ):
        to = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        command = [sys.executable, "-m", "chaos.netem", "--link", f"engine:e0={to}", "--link", f"agent:e0={to}"]
        child = await children.start("wires", command, ready_within_s=60)
        control, ports = child.ready["control"], child.ready["ports"]
        assert await asked(ports["engine:e0"]) == b"hello"

        async with session.put(f"{control}/rules/cut", json={"links": ["engine:e0"], "reset": True}) as reply:
            assert reply.status == 200
        with pytest.raises(ConnectionResetError):
            await asked(ports["engine:e0"])
        assert await asked(ports["agent:e0"]) == b"hello"
        links = await until_closed(session, control)
        expected = {"port": ports["agent:e0"], "to": to, "open": 0, "accepted": {"127.0.0.1": 1}}
        assert links["agent:e0"] == expected

        async with session.put(f"{control}/rules/odd", json={"links": ["engine:e9"]}) as reply:
            assert reply.status == 400
            assert "engine:e9" in (await reply.json())["error"]
        async with session.put(f"{control}/rules/odd", data=b"{") as reply:
            assert reply.status == 400
        async with session.delete(f"{control}/rules/cut") as reply:
            assert await reply.json() == {}
        assert await asked(ports["engine:e0"]) == b"hello"

        assert await children.stop(child) == 0


@pytest.mark.parametrize("link", ["engine:e0", "=127.0.0.1:1", "engine:e0=127.0.0.1", "engine:e0=127.0.0.1:x"])
def test_invalid_link_option_is_refused(link: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--link", link])

    assert ended.value.code == 2
    assert "NAME=HOST:PORT" in capsys.readouterr().err


def test_unavailable_kernel_link_exits_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SWITCHGEAR_CHAOS_KERNEL", "1")

    assert main(["--link", "engine:e0=127.0.0.1:1"]) == 1
    output = capsys.readouterr()
    assert "ip not found" in output.err
    assert output.out == ""
