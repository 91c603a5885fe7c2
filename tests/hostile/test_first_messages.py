"""Large first messages, many at once from one host: their sum is limited, and others are served meanwhile."""

import asyncio
import contextlib
from pathlib import Path

import grpc

from tests.eventually import eventually
from tests.hostile.conftest import DELTA, LIMIT_S, Call, Neighbour, connected, started
from xds_server.auth.stream_limits import MAX_FIRST_BYTES
from xds_server.model.type_urls import ENDPOINT
from xds_server.wire.decode import DeltaDiscoveryRequest
from xds_server.xds.messages import MAX_NAMES

CONNECTIONS = 4
STREAMS = 60
MOST_MIB = 640
"""The server takes 120; 128 are for names, 64 for unfinished messages, and the rest for what arrives meanwhile."""


def large_first_message(node: str) -> bytes:
    """As many different names as a stream may have, close to the limit of a first message."""
    request = DeltaDiscoveryRequest(type_url=ENDPOINT)
    request.node.id = node
    request.resource_names_subscribe.extend(f"{node}-{number}-{'n' * 30}" for number in range(MAX_NAMES))
    data = bytes(request.SerializeToString())
    assert 0.8 * MAX_FIRST_BYTES < len(data) <= MAX_FIRST_BYTES
    return data


def highest_memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(one.split()[1]) / 1024 for one in lines if one.startswith("VmHWM"))


async def test_large_first_messages_are_limited_and_others_are_served(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        async with contextlib.AsyncExitStack() as stack:
            peer = await stack.enter_async_context(connected(server.xds, "neighbour"))
            behaving = asyncio.create_task(peer.behave())
            await eventually(lambda: peer.acks, "the neighbour's first ACK", LIMIT_S)
            statuses: list[grpc.StatusCode] = []

            async def attack(call: Call, node: str) -> None:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await call.write(large_first_message(node))
                    while isinstance(await call.read(), bytes):
                        pass
                statuses.append(await call.code())

            attacks = []
            for number in range(CONNECTIONS):
                options = (("grpc.use_local_subchannel_pool", 1),)
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.xds, options=options))
                for stream in range(STREAMS):
                    call: Call = channel.stream_stream(DELTA)()
                    attacks.append(asyncio.create_task(attack(call, f"a{number}-{stream:02}")))
            for _ in range(3):
                await Neighbour(server=server, peer=peer).is_served()
            late = await stack.enter_async_context(connected(server.xds, "late"))
            also = asyncio.create_task(late.behave())
            await eventually(lambda: late.acks, "a new proxy of the same host is served", LIMIT_S)
            await server.counts("switchgear_xds_stream_errors_total", 'flaw="names"', 0)
            refused = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT}
            # Of connections that were reset, with over 64 MiB on their way; a reset may overtake a status.
            reset = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL}
            assert set(statuses) <= refused | reset
            assert highest_memory_mib(server.process.pid) < MOST_MIB
            for task in (behaving, also, *attacks):
                assert task in attacks or not task.done()
                task.cancel()
            await asyncio.wait((behaving, also, *attacks))
