"""Half messages against a server that waits for a core: bounded, although its event loop is late."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.soak.half_messages import SCRIPT
from tests.hostile.conftest import LIMIT_S, Neighbour, connected, started
from tests.hostile.test_first_messages import highest_memory_mib
from xds_server.publish.ads_service import MAX_REQUEST_BYTES

CONNECTIONS = 34
STREAMS = 120
BUSY = 2
MOST_MIB = 576
"""The server takes 120; 4 080 streams of gRPC 200, 64 are for unfinished messages, the rest for what arrives
between two checks. It was 900 to 1 000, and grew while the attack lasted."""


@contextlib.contextmanager
def starved(pid: int) -> Iterator[None]:
    """All threads of a process on one core, which others keep busy."""
    core = {min(os.sched_getaffinity(0))}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), core)
    with contextlib.ExitStack() as stack:
        for _ in range(BUSY):
            busy = stack.enter_context(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
            stack.callback(busy.kill)
            os.sched_setaffinity(busy.pid, core)
        yield


@pytest.mark.parametrize("node", [(), ("enemy",)], ids=["as first messages", "after a complete one"])
async def test_half_messages_of_all_streams_are_bounded_on_a_starved_server(
    node: tuple[str, ...], tmp_path: Path
) -> None:
    with started(tmp_path) as server:
        async with connected(server.xds, "neighbour") as peer:
            behaving = asyncio.create_task(peer.behave())
            await Neighbour(server=server, peer=peer).is_served()
            hostile = await asyncio.create_subprocess_exec(
                *(sys.executable, SCRIPT, server.xds),
                *(str(CONNECTIONS), str(STREAMS), str(MAX_REQUEST_BYTES), *node),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                with starved(server.process.pid):
                    assert hostile.stdout is not None
                    async with asyncio.timeout(2 * LIMIT_S):
                        assert await hostile.stdout.readline(), "it has sent what the server takes"
                    assert highest_memory_mib(server.process.pid) < MOST_MIB
                await server.counts("switchgear_xds_stream_errors_total", 'flaw="memory"', 0)
                assert "Traceback" not in server.log()
                await Neighbour(server=server, peer=peer).is_served()
                assert not behaving.done(), "the neighbour keeps its stream"
            finally:
                hostile.kill()
                await hostile.wait()
                behaving.cancel()
                await asyncio.wait([behaving])
