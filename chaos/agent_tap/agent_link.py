"""Relay of one agent: its own port, with every call passed on."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Final

import grpc
import grpc.aio

from chaos.agent_tap.report_rules import ReportRule, falsified_message, falsified_report
from engine.watch_server import ACKNOWLEDGE, WATCH

# Reconnect to a restarted agent about as fast as without the tap.
_CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
)


def _same(message: bytes) -> bytes:
    return message


class AgentLink(grpc.GenericRpcHandler):
    """``await listen()``, then ``port``; ``set_rule`` at any time; ``await close()``."""

    def __init__(self, address: str) -> None:
        self.port = 0
        self._address = address
        self._lies: tuple[ReportRule, ...] = ()
        self._version = 0
        self._watches: set[asyncio.Event] = set()

    async def listen(self) -> None:
        """Listen on a free loopback port and relay its calls."""
        self._channel = grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def close(self) -> None:
        await self._server.stop(grace=None)
        await self._channel.close()

    def set_rule(self, lies: Sequence[ReportRule]) -> None:
        """Set the rules; watchers get the latest report again, falsified accordingly."""
        self._lies = tuple(lies)
        self._version += 1
        for watch in self._watches:
            watch.set()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        method = str(handler_call_details.method)

        async def passing(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
        ) -> AsyncIterator[bytes]:
            sent = _translated(requests) if method == ACKNOWLEDGE else requests
            call = self._channel.stream_stream(method, request_serializer=_same, response_deserializer=_same)(sent)
            answers = self._told(call) if method == WATCH else call
            try:
                async for answer in answers:
                    yield answer
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as ended:
                code = ended.code() if isinstance(ended, grpc.aio.AioRpcError) else grpc.StatusCode.UNAVAILABLE
                await context.abort(code, "the call to the agent has ended")
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(
            passing, request_deserializer=_same, response_serializer=_same
        )

    async def _told(self, reports: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """The latest report whenever it or the rules change."""
        news = asyncio.Event()
        newest: list[bytes] = []

        async def read() -> None:
            try:
                async for report in reports:
                    newest[:] = [report]
                    news.set()
            finally:
                news.set()

        reading = asyncio.create_task(read())
        self._watches.add(news)
        try:
            while True:
                await news.wait()
                news.clear()
                if reading.done():
                    reading.result()
                    return
                for report in newest:
                    yield falsified_report(report, self._lies, self._version)
        finally:
            self._watches.discard(news)
            reading.cancel()


async def _translated(requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for request in requests:
        yield falsified_message(request)
