"""Work that a signal ends in order: what was broken is healed, and what was started is stopped."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def run_until_signal(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``; SIGINT and SIGTERM cancel it, also where a shell had them ignored."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await task
