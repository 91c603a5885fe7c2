"""Relay of one proxy's gRPC streams to the control plane."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import grpc
import grpc.aio

from chaos.xds_tap.tap_rules import StreamTreatment
from chaos.xds_tap.tapped_stream import Note, TappedStream, tapped_stream

# No message size limit, and keepalives as fast as the peers' own: see envoy/bootstrap.yaml and
# xds_server/publish/grpc_ads.py.
_SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
)
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # One connection per proxy, as without the tap.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The proxy decides how long to wait for a restarted control plane.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
)

Messages = AsyncIterator[bytes]
Context = grpc.aio.ServicerContext[bytes, bytes]


class XdsTap(grpc.GenericRpcHandler):
    """Streams of one proxy. ``note`` records each push and reply."""

    def __init__(self, control_plane: str, note: Note) -> None:
        self._control_plane = control_plane
        self._note = note
        self._treatment = StreamTreatment()
        self._telemetry: set[grpc.aio.Call] = set()
        self._channel: grpc.aio.Channel
        self._server: grpc.aio.Server

    async def start(self) -> int:
        """Listen on loopback; return the port."""
        self._channel = grpc.aio.insecure_channel(self._control_plane, options=_CHANNEL_OPTIONS)
        self._server = grpc.aio.server(handlers=(self,), options=_SERVER_OPTIONS)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def stop(self) -> None:
        """Cut every stream."""
        await self._server.stop(grace=None)
        await self._channel.close()

    def obey(self, treatment: StreamTreatment) -> None:
        """Set the treatment of the streams."""
        self._treatment = treatment
        if treatment.lost:
            for call in self._telemetry:
                call.cancel()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Relay every method."""
        method = str(handler_call_details.method)

        async def passing(requests: Messages, context: Context) -> Messages:
            what = tapped_stream(method, lambda: self._treatment, self._note)
            if what.telemetry and self._treatment.lost:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "telemetry dropped by a fault")
            call = self._channel.stream_stream(method, request_serializer=_same, response_deserializer=_same)(
                _asked(requests, what)
            )
            if what.telemetry:
                self._telemetry.add(call)
            try:
                async for response in call:
                    yield what.on_response(response)
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the control plane's stream has ended")
            finally:
                self._telemetry.discard(call)
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(
            passing, request_deserializer=_same, response_serializer=_same
        )


def _same(message: bytes) -> bytes:
    return message


async def _asked(requests: Messages, what: TappedStream) -> Messages:
    async for request in requests:
        yield what.on_request(request)
