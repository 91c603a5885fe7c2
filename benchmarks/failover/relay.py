"""A relay in front of the control plane that can lose telemetry and nothing else: ``python -m
benchmarks.failover.relay HOST:PORT``.

Envoy sends access logs and load reports over the connection that brings it its configuration, so that no cable can
be cut between them. This process passes every gRPC stream on as bytes; on SIGUSR1 it ends those of telemetry and
refuses new ones, on SIGUSR2 it lets them through again. Its first line on stdout is where it listens.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence

import grpc.aio

TELEMETRY = ("envoy.service.accesslog.", "envoy.service.load_stats.")


def _same(message: bytes) -> bytes:
    return message


class _Relay(grpc.GenericRpcHandler):
    """Streams both ways. ``deaf`` while telemetry is lost."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.deaf = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        method = str(handler_call_details.method)
        return grpc.stream_stream_rpc_method_handler(
            self._passing(method), request_deserializer=_same, response_serializer=_same
        )

    def _passing(
        self, method: str
    ) -> Callable[[AsyncIterator[bytes], grpc.aio.ServicerContext[bytes, bytes]], AsyncIterator[bytes]]:
        lossy = method.removeprefix("/").startswith(TELEMETRY)

        async def passing(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
        ) -> AsyncIterator[bytes]:
            if lossy and self.deaf.is_set():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "telemetry is lost on purpose")
            call = self._channel.stream_stream(method, request_serializer=_same, response_deserializer=_same)(
                requests
            )
            watch = asyncio.create_task(self._cut(call)) if lossy else None
            try:
                async for response in call:
                    yield response
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream behind the relay has ended")
            finally:
                call.cancel()
                if watch is not None:
                    watch.cancel()

        return passing

    async def _cut(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        await self.deaf.wait()
        call.cancel()


async def serve(target: str) -> None:
    """Relay until SIGTERM."""
    ended = asyncio.Event()
    async with grpc.aio.insecure_channel(target) as channel:
        relay = _Relay(channel)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((relay,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        loop.add_signal_handler(signal.SIGUSR1, relay.deaf.set)
        loop.add_signal_handler(signal.SIGUSR2, relay.deaf.clear)
        print(json.dumps({"port": port}), flush=True)
        await ended.wait()
        await server.stop(grace=None)


def main(argv: Sequence[str]) -> int:
    """0 when it was told to end."""
    asyncio.run(serve(argv[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
