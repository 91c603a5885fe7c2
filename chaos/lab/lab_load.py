"""The load of a lab: its scenario's requests, sent through its Envoys."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from chaos.history.history_events import RequestRecord
from chaos.lab.lab_session import Lab
from chaos.load.arrival_schedule import arrival_schedule
from chaos.load.request_sender import LoadTarget
from chaos.load.running_load import RunningLoad
from chaos.scenario.arrival_trace import read_trace


async def send_load(
    lab: Lab,
    on_request: Callable[[RequestRecord], None],
    *,
    began_s: float,
    seconds: float,
    stop: asyncio.Event,
) -> None:
    """Send the requests for ``seconds`` or until ``stop``; return once the last one is answered.

    Calls ``on_request`` as each one ends. Times count from ``began_s`` on the monotonic clock.
    """
    experiment = lab.plan.experiment
    targets = [LoadTarget(url=one.url, name=one.name, weight=one.demand) for one in lab.site.proxies.values()]
    trace = experiment.spec.load.trace
    running = RunningLoad(
        arrival_schedule(experiment, targets, () if trace is None else read_trace(Path(trace))),
        lab.plan.asking,
        on_request,
        began_s=began_s,
        seconds=seconds,
        stop=stop,
    )
    lab.asked.begin(running)
    try:
        await running.run()
    finally:
        lab.asked.end()


@asynccontextmanager
async def until_stopped(send: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Send inside the block; on exit stop sending and wait for the last answer."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(send(stop))
        try:
            yield
        finally:
            stop.set()


def send_until_stopped(lab: Lab, on_request: Callable[[RequestRecord], None]) -> AbstractAsyncContextManager[None]:
    """Send the lab's load inside the block, without a history."""
    began_s = time.monotonic()
    return until_stopped(lambda stop: send_load(lab, on_request, began_s=began_s, seconds=float("inf"), stop=stop))
