"""What every server of the fan-out benchmark is measured with: its row, and peers in a process of their own."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutRow:
    """One N and transport. ``last_ms``: from publish to the last stream; ``storm_ms``: from connect to configured.

    ``storm_cpu_ms``: the server's, until all are configured. ``written_cpu_ms``: from publish to the last stream's
    response, which a busy machine changes less than ``last_ms``; ``None`` where the server does not tell.
    """

    transport: str
    streams: int
    pushes: int
    last_ms_p50: float
    last_ms_max: float
    median_stream_ms: float
    written_cpu_ms: float | None
    cpu_ms_per_push: float
    kb_per_stream: float
    storm_ms: float
    storm_cpu_ms: float


class FanoutPeers:
    """The events of ``benchmarks.fanout_peers``."""

    def __init__(self, events: asyncio.StreamReader) -> None:
        self._events = events

    async def next_event(self) -> dict[str, float]:
        """The next event, within ``LIMIT_S``."""
        line = await asyncio.wait_for(self._events.readline(), LIMIT_S)
        if not line:
            raise RuntimeError("the peers' process ended early")
        event: dict[str, float] = json.loads(line)
        return event


@asynccontextmanager
async def peers(port: int, streams: int) -> AsyncIterator[FanoutPeers]:
    """This many peers of the server on this port, until the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.fanout_peers",
        str(port),
        str(streams),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield FanoutPeers(process.stdout)
    finally:
        process.kill()
        await process.wait()
