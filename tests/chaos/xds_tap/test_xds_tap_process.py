"""The xDS tap relays every stream, records messages, and falsifies by rule."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc.aio
import pytest

from chaos.history.history_events import ConfigPush, ConfigReply
from chaos.processes import ChildProcesses, free_ports
from chaos.xds_tap.tap_events import tap_events
from chaos.xds_tap.tapped_stream import DELTA

LOGS = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
LIMIT_S = 60.0


def same(message: bytes) -> bytes:
    return message


class Echo(grpc.GenericRpcHandler):
    """Answers each message with itself."""

    def service(self, handler_call_details):  # noqa: ARG002 -- every method
        async def echo(requests, _context) -> AsyncIterator[bytes]:
            async for request in requests:
                yield request

        return grpc.stream_stream_rpc_method_handler(echo, same, same)


@contextlib.asynccontextmanager
async def echoing(port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@dataclass
class Tapped:
    """A wiretap in front of something, and channels to it by proxy."""

    control: str
    session: aiohttp.ClientSession
    channels: dict[str, grpc.aio.Channel]

    async def order(self, name: str, **order: Any) -> int:
        async with self.session.put(f"{self.control}/orders/{name}", json=order) as answer:
            return answer.status

    async def take_back(self, name: str) -> None:
        async with self.session.delete(f"{self.control}/orders/{name}") as answer:
            assert answer.status == 200

    async def seen(self) -> list[ConfigPush | ConfigReply]:
        async with self.session.get(f"{self.control}/seen") as answer:
            return list(tap_events(await answer.text(), 0.0))


@contextlib.asynccontextmanager
async def tapped(port: int, *proxies: str) -> AsyncIterator[Tapped]:
    command = [sys.executable, "-m", "chaos.xds_tap"]
    for proxy in proxies:
        command += ["--link", f"xds:{proxy}=127.0.0.1:{port}"]
    async with (
        ChildProcesses() as children,
        aiohttp.ClientSession() as session,
        contextlib.AsyncExitStack() as channels,
    ):
        ready = (await children.start("wiretap", command, ready_within_s=60)).ready
        yield Tapped(
            control=ready["control"],
            session=session,
            channels={
                proxy: await channels.enter_async_context(
                    grpc.aio.insecure_channel(
                        f"127.0.0.1:{ready['ports'][f'xds:{proxy}']}",
                        options=(("grpc.max_reconnect_backoff_ms", 100), ("grpc.use_local_subchannel_pool", 1)),
                    )
                )
                for proxy in proxies
            },
        )


def opened(channel: grpc.aio.Channel, method: str) -> grpc.aio.StreamStreamCall:
    return channel.stream_stream(method, same, same)()


async def expected(call: grpc.aio.StreamStreamCall, text: bytes) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        await call.write(text)
        return await call.read()


async def ended(call: grpc.aio.StreamStreamCall) -> grpc.StatusCode:
    async with asyncio.timeout(LIMIT_S):
        return await call.code()


async def served_again(channel: grpc.aio.Channel, method: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                assert await expected(opened(channel, method), b"") == b""
                return


async def test_telemetry_of_one_proxy_is_dropped_until_healed() -> None:
    async with echoing() as port, tapped(port, "p0", "p1") as tap:
        calls = {
            (proxy, method): opened(channel, method)
            for proxy, channel in tap.channels.items()
            for method in (DELTA, LOGS)
        }
        for (proxy, _), call in calls.items():
            assert await expected(call, b"") == b""
            assert proxy
        assert await tap.order("o", proxy="p0", lost=True) == 200
        assert await ended(calls.pop(("p0", LOGS))) is grpc.StatusCode.UNAVAILABLE
        assert await ended(opened(tap.channels["p0"], LOGS)) is grpc.StatusCode.UNAVAILABLE
        for call in calls.values():
            assert await expected(call, b"") == b""
        await tap.take_back("o")
        await served_again(tap.channels["p0"], LOGS)


@pytest.mark.parametrize("method", [DELTA, LOGS])
async def test_closed_stream_is_closed_on_both_sides(method: str) -> None:
    async with echoing() as port, tapped(port, "p0") as tap:
        call = opened(tap.channels["p0"], method)
        await expected(call, b"")
        call.cancel()
        assert await expected(opened(tap.channels["p0"], method), b"") == b""


async def test_xds_streams_end_with_the_control_plane_and_reconnect() -> None:
    (port,) = free_ports(1)
    async with tapped(port, "p0") as tap:
        assert await ended(opened(tap.channels["p0"], DELTA)) is grpc.StatusCode.UNAVAILABLE
        for _ in range(2):
            async with echoing(port):
                await served_again(tap.channels["p0"], DELTA)
                call = opened(tap.channels["p0"], DELTA)
                await expected(call, b"")
            assert await ended(call) is grpc.StatusCode.UNAVAILABLE


async def test_invalid_rule_returns_the_reason() -> None:
    async with echoing() as port, tapped(port, "p0") as tap:
        assert await tap.order("o", proxy="p9", lost=True) == 400
        assert await tap.order("o", proxy="p0", corrupt="xds") == 400
        assert await tap.order("o", proxy="p0", colour="blue") == 400
        async with tap.session.put(f"{tap.control}/orders/o", data=b"{") as answer:
            assert answer.status == 400
        async with tap.session.get(f"{tap.control}/orders") as answer:
            assert await answer.json() == {}
