"""Streams of grpc.aio that leave no memory behind.

grpc.aio frees an operation, with the message that it holds, only after its future has a result. One that failed,
or whose task was cancelled, keeps 100 to 200 bytes forever, and these keep the pages around them from the system
(grpc/grpc#43360, open in 1.85.1). A peer decides how many of its streams break off.
"""

import asyncio
from typing import Any

import grpc
import grpc.aio


class _OperationFuture(asyncio.Future[Any]):
    """A failed operation ends like one whose peer is gone: reads return the end of the stream, writes nothing."""

    def set_exception(self, exception: type | BaseException, /) -> None:
        if isinstance(exception, grpc.aio.InternalError):
            self.set_result(None)
        else:
            super().set_exception(exception)


class GrpcEventLoop(asyncio.SelectorEventLoop):
    """Event loop whose failed gRPC operations free their memory."""

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return _OperationFuture(loop=self)


async def read_message(context: "grpc.aio.ServicerContext[bytes, bytes]") -> object:
    """The next message of a stream; anything but bytes: its end. May be cancelled: the operation then ends with
    the stream."""
    reading = asyncio.ensure_future(context.read())
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        reading.add_done_callback(_ignore_outcome)
        raise


async def send_headers(context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
    """Begin the response; returns also if the peer is gone, which reading finds.

    A cancelled caller waits, too: gRPC takes no status while the headers are being sent, logs an error instead,
    and keeps the stream with all that its peer has sent.
    """
    sending = asyncio.ensure_future(context.send_initial_metadata(()))
    sending.add_done_callback(_ignore_outcome)
    try:
        await asyncio.shield(sending)
    except grpc.aio.InternalError:
        return
    except asyncio.CancelledError:
        await asyncio.wait([sending])
        raise


def _ignore_outcome(operation: "asyncio.Future[Any]") -> None:
    """Retrieve the error of an operation that is not waited for, or asyncio logs it: the stream ended under it."""
    if not operation.cancelled():
        operation.exception()


def end_stream(context: "grpc.aio.ServicerContext[bytes, bytes]", code: grpc.StatusCode, text: str) -> None:
    """End a stream with this status once its handler returns.

    ``context.abort`` would raise an error that refers to the stream and is referred to by it: a cycle that keeps
    the whole stream until the oldest garbage is collected, an hour later.
    """
    context.set_code(code)
    context.set_details(text)
