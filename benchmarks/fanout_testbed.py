"""What every server of the fan-out benchmark is measured with: its row, and peers in a process of their own."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
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
    """The events of ``benchmarks.fanout_peers``, and what they say of the server."""

    def __init__(self, streams: int, events: asyncio.StreamReader) -> None:
        self._streams = streams
        self._events = events
        self._storm_ms = 0.0
        self._last_ms: list[float] = []
        self._median_ms: list[float] = []

    async def connected(self) -> None:
        """All have their resources."""
        event = await self._next_event()
        self._storm_ms = (event["last_s"] - event["started_s"]) * 1e3

    async def pushed(self, started_s: float) -> None:
        """All have the change that was published then (monotonic)."""
        event = await self._next_event()
        self._last_ms.append((event["last_s"] - started_s) * 1e3)
        self._median_ms.append((event["median_s"] - started_s) * 1e3)

    def row(
        self,
        transport: str,
        *,
        written_cpu_ms: float | None,
        cpu_ms_per_push: float,
        kb_per_stream: float,
        storm_cpu_ms: float,
    ) -> FanoutRow:
        """The row, with what the server has measured."""
        return FanoutRow(
            transport=transport,
            streams=self._streams,
            pushes=len(self._last_ms),
            last_ms_p50=median(self._last_ms),
            last_ms_max=max(self._last_ms),
            median_stream_ms=median(self._median_ms),
            written_cpu_ms=written_cpu_ms,
            cpu_ms_per_push=cpu_ms_per_push,
            kb_per_stream=kb_per_stream,
            storm_ms=self._storm_ms,
            storm_cpu_ms=storm_cpu_ms,
        )

    async def _next_event(self) -> dict[str, float]:
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
        yield FanoutPeers(streams, process.stdout)
    finally:
        process.kill()
        await process.wait()
