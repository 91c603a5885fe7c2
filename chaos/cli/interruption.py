"""Work that a signal ends cleanly: faults are healed and processes stopped."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def run_until_signal(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of ``work``; SIGINT and SIGTERM cancel it, even if the shell had them ignored."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await task
