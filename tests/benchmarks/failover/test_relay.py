"""The relay passes every stream on, and loses those of telemetry when it is told to."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from chaos.processes import Child, Processes

CONFIGURATION = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
LOGS = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"


def same(message: bytes) -> bytes:
    return message


class Echo(grpc.GenericRpcHandler):
    """Answers each message with the method it came by and itself."""

    def service(self, handler_call_details):
        method = handler_call_details.method.encode()

        async def echo(requests, _context) -> AsyncIterator[bytes]:
            async for request in requests:
                yield method + b" " + request

        return grpc.stream_stream_rpc_method_handler(echo, same, same)


@contextlib.asynccontextmanager
async def relayed() -> AsyncIterator[tuple[Child, grpc.aio.Channel]]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with Processes() as children:
            command = [sys.executable, "-m", "benchmarks.failover.relay", f"127.0.0.1:{port}"]
            relay = await children.start("relay", command, ready_within_s=60)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{relay.ready['port']}") as channel:
                yield relay, channel
    finally:
        await server.stop(None)


def opened(channel: grpc.aio.Channel, method: str) -> grpc.aio.StreamStreamCall:
    return channel.stream_stream(method, same, same)()


async def said(call: grpc.aio.StreamStreamCall, text: bytes) -> bytes:
    async with asyncio.timeout(20):
        await call.write(text)
        return await call.read()


async def ended(call: grpc.aio.StreamStreamCall) -> grpc.StatusCode:
    async with asyncio.timeout(20):
        return await call.code()


async def test_streams_pass_both_ways_and_only_telemetry_is_lost() -> None:
    async with relayed() as (relay, channel):
        configuration, logs = opened(channel, CONFIGURATION), opened(channel, LOGS)
        assert await said(configuration, b"one") == CONFIGURATION.encode() + b" one"
        assert await said(logs, b"two") == LOGS.encode() + b" two"
        relay.signal_group(signal.SIGUSR1)
        assert await ended(logs) is grpc.StatusCode.UNAVAILABLE
        assert await ended(opened(channel, LOGS)) is grpc.StatusCode.UNAVAILABLE
        assert await said(configuration, b"three") == CONFIGURATION.encode() + b" three"
        relay.signal_group(signal.SIGUSR2)
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    assert await said(opened(channel, LOGS), b"four") == LOGS.encode() + b" four"
                    break


@pytest.mark.parametrize("method", [CONFIGURATION, LOGS])
async def test_a_peer_that_leaves_leaves_behind_the_relay_too(method: str) -> None:
    async with relayed() as (_, channel):
        call = opened(channel, method)
        await said(call, b"one")
        call.cancel()
        again = opened(channel, method)
        assert await said(again, b"two")
