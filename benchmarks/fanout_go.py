"""go-control-plane as a server of the fan-out benchmark: its LinearCache, with the same content, on one core.

Built once, by Go, into the cache that checkouts share.
"""

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Final

from benchmarks.fanout_testbed import LIMIT_S, FanoutRow, peers
from benchmarks.process_usage import cpu_s, resident_bytes
from tests.go_build import built_into, cache

GO_CONTROL_PLANE: Final = "go-control-plane"
_SOURCE: Final = Path(__file__).with_name("go_control_plane")
_QUIET_S: Final = 0.25


def program() -> Path:
    """The server, built now if need be; ``PartsError`` with the reason if that fails."""
    content = b"".join((_SOURCE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    at = cache("benchmark-parts") / f"fanout-{hashlib.sha256(content).hexdigest()[:12]}"
    folder = built_into(
        at,
        "a server of go-control-plane",
        lambda _: ["install", "-ldflags=-s -w", "."],
        otherwise="its row of the fan-out benchmark is left out",
        cwd=_SOURCE,
    )
    return folder / "fanout"


async def _settled_cpu_s(pid: int) -> float:
    """CPU time of the process once it uses none: the last acknowledgements have been read."""
    used_s, by_s = -1.0, time.monotonic() + LIMIT_S
    while (now_s := cpu_s(pid)) != used_s:
        if time.monotonic() > by_s:
            raise TimeoutError("the server never came to rest")
        used_s = now_s
        await asyncio.sleep(_QUIET_S)
    return used_s


async def measure_go(streams: int, pushes: int) -> FanoutRow:
    """One row. CPU time is the kernel's, in ticks of 10 ms, of all pushes together."""
    server = await asyncio.create_subprocess_exec(
        program(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = int(await asyncio.wait_for(server.stdout.readline(), LIMIT_S))
        before_bytes, before_s = resident_bytes(server.pid), cpu_s(server.pid)
        async with peers(port, streams) as fleet:
            await fleet.connected()
            storm_cpu_s = cpu_s(server.pid) - before_s
            await _settled_cpu_s(server.pid)
            server.stdin.write(b"collect\n")
            await asyncio.wait_for(server.stdout.readline(), LIMIT_S)
            kb_per_stream = (resident_bytes(server.pid) - before_bytes) / 1024 / streams
            configured_s = await _settled_cpu_s(server.pid)
            for _ in range(pushes):
                started_s = time.monotonic()
                server.stdin.write(b"push\n")
                await fleet.pushed(started_s)
            pushed_s = await _settled_cpu_s(server.pid)
    finally:
        server.kill()
        await server.wait()
    return fleet.row(
        GO_CONTROL_PLANE,
        written_cpu_ms=None,
        cpu_ms_per_push=(pushed_s - configured_s) * 1e3 / pushes,
        kb_per_stream=kb_per_stream,
        storm_cpu_ms=storm_cpu_s * 1e3,
    )
