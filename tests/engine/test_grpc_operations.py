"""Streams that break off leave no C memory behind: counted by the allocator, in a process of its own."""

import asyncio
import gc
from typing import Any, Final, cast

import grpc
import grpc.aio

from engine.grpc_operations import read_message
from tests.c_memory import printed_number

STREAMS: Final = 500

LEAKED_BYTES: Final = 96
"""The smallest leak of a failed operation: its array of one operation, as an allocated chunk."""

SERVER: Final = """
import asyncio, sys
import grpc, grpc.aio
from engine.grpc_operations import GrpcEventLoop, end_stream, read_message
from tests.c_memory import used_bytes

how, ends, count, client = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
class Streams(grpc.GenericRpcHandler):
    def __init__(self):
        self.left = 0
        async def behave(_, context):
            read = read_message if how == "ours" else type(context).read
            try:
                await read(context)
                if ends == "server":
                    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
                else:
                    await context.write(b"answer")
                await read(context)
            except asyncio.CancelledError:
                if ends == "peer":
                    raise
                if how == "ours":
                    end_stream(context, grpc.StatusCode.INVALID_ARGUMENT, "no")
                else:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
            finally:
                self.left -= 1
        self.handler = grpc.stream_stream_rpc_method_handler(behave)

    def service(self, _):
        return self.handler

async def main():
    streams = Streams()
    server = grpc.aio.server(handlers=[streams])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def attack():
        streams.left = count
        peer = await asyncio.create_subprocess_exec(sys.executable, "-c", client, str(port), str(count))
        assert await peer.wait() == 0
        while streams.left > 0:
            await asyncio.sleep(0.01)

    await attack()
    found = []
    for _ in range(3):
        before = used_bytes()
        await attack()
        found.append((used_bytes() - before) / count)
    print(sorted(found)[1])
    await server.stop(None)

with asyncio.Runner(loop_factory=GrpcEventLoop if how == "ours" else None) as runner:
    runner.run(main())
"""

CLIENT: Final = """
import asyncio, contextlib, sys
import grpc.aio

async def main():
    async with grpc.aio.insecure_channel(f"127.0.0.1:{sys.argv[1]}") as channel:
        for _ in range(int(sys.argv[2])):
            call = channel.stream_stream("/a/b")()
            await call.write(b"question")
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call.read()
            call.cancel()

asyncio.run(main())
"""


def bytes_per_stream(how: str, ends: str) -> float:
    return printed_number(SERVER, how, ends, str(STREAMS), CLIENT, limit_s=120)


def test_streams_that_peers_break_off_leave_no_memory() -> None:
    assert bytes_per_stream("ours", "peer") < 0.75 * LEAKED_BYTES
    # Once this fails, grpc.aio frees them itself: remove GrpcEventLoop and read_message.
    assert bytes_per_stream("plain", "peer") > 0.75 * LEAKED_BYTES


def test_streams_that_the_server_ends_leave_no_memory() -> None:
    assert bytes_per_stream("ours", "server") < 0.75 * LEAKED_BYTES


async def test_read_that_fails_after_its_cancellation_is_not_logged() -> None:
    """As of all streams of a server that stops: grpc.aio then refuses the read, which has no reader."""
    ends, logged = asyncio.Event(), list[dict[str, Any]]()

    class Ending:
        async def read(self) -> bytes:
            await ends.wait()
            raise grpc.aio.UsageError("RPC already finished.")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    context = cast("grpc.aio.ServicerContext[bytes, bytes]", Ending())
    reading = asyncio.create_task(read_message(context))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    ends.set()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert not logged
