"""Agents that have to be dialled again and again leave no C memory behind: counted in a process of its own."""

from typing import Final

import pytest

from tests.c_memory import printed_number

STREAMS: Final = 600

KEPT_READ_BYTES: Final = 96
"""The least that gRPC keeps of a read that was cancelled; a flood leaves the message, too."""

DIALER: Final = """
import asyncio, sys
from pathlib import Path
import structlog
import yaml
from engine.grpc_operations import GrpcEventLoop
from policies.load import load_contents
from tests.c_memory import used_bytes
from xds_server.engine_health import agent_dialer
from xds_server.model.backoff import ExponentialBackoff

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
how, count, agent = sys.argv[1], int(sys.argv[2]), sys.argv[3]
agent_dialer.FRESH_S = 0.02 if how in ("silent", "flooding") else 3600.0
agent_dialer._MOST_PER_S = 1_000_000_000
agent_dialer._BACKOFF = ExponentialBackoff(first_s=0.0, most_s=0.0)
BATCH = 20

class Dialer(agent_dialer.AgentDialer):
    ended = 0
    async def _listen(self, channel, link):
        try:
            return await super()._listen(channel, link)
        finally:
            self.ended += 1

def policies(port, engines):
    address = {"address": "127.0.0.1"}
    endpoints = [address | {"name": f"e{n}", "port": n + 1, "agentPort": port} for n in range(engines)]
    endpoints.append(address | {"name": "other", "port": 9999})
    pool = {"apiVersion": "switchgear.dev/v1alpha1", "kind": "EnginePool", "metadata": {"name": "chat"}}
    pool["spec"] = {"model": "m", "endpoints": endpoints}
    return load_contents({Path("pool.yaml"): yaml.safe_dump(pool).encode()})

async def main():
    peer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", agent, how, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    port = int(await peer.stdout.readline())
    some, none = policies(port, BATCH), policies(port, 0)
    dropped = 0
    def drop(_):
        nonlocal dropped
        dropped += 1
    dialer = Dialer(lambda report: None, watcher="me", on_error=drop)
    running = asyncio.create_task(dialer.run())

    async def until(condition):
        while not condition():
            assert not running.done()
            await asyncio.sleep(0.005)

    async def attack():
        nonlocal dropped
        until_ended = dialer.ended + count
        while dialer.ended < until_ended:
            dropped = 0
            dialer.watch(some)
            await until(lambda: dropped >= BATCH if how == "removed" else dialer.ended >= until_ended)
            dialer.watch(none)
            await until(lambda: not asyncio.all_tasks() - {asyncio.current_task(), running} - permanent)

    await asyncio.sleep(0)
    permanent = asyncio.all_tasks()
    await attack()
    found = []
    for _ in range(3):
        before = used_bytes()
        await attack()
        found.append((used_bytes() - before) / count)
    print(sorted(found)[1])
    running.cancel()
    peer.stdin.close()
    await peer.wait()

with asyncio.Runner(loop_factory=GrpcEventLoop) as runner:
    runner.run(main())
"""

AGENT: Final = """
import asyncio, sys
import grpc, grpc.aio

async def behave(_, context):
    while True:
        await context.write(bytes([255]) * {"flooding": 60_000, "oversized": 70_000}.get(sys.argv[1], 0))
        if sys.argv[1] != "flooding":
            await asyncio.Event().wait()
        await asyncio.sleep(0.001)

class Agent(grpc.GenericRpcHandler):
    def service(self, _):
        return grpc.stream_stream_rpc_method_handler(behave)

async def main():
    server = grpc.aio.server(handlers=[Agent()])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["silent", "flooding", "oversized", "removed"])
def test_streams_to_agents_that_end_leave_no_memory(how: str) -> None:
    """Silent after one report that is none; flooding with such; removed from the policies while reading."""
    kept_bytes = printed_number(DIALER, how, str(STREAMS), AGENT, limit_s=300)
    assert kept_bytes < 0.75 * KEPT_READ_BYTES
