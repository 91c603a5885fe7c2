"""Wait for conditions instead of sleeping."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest


async def eventually(condition: Callable[[], Awaitable[Any] | Any], what: str, limit_s: float) -> Any:
    """The first true answer of ``condition``; the test fails after ``limit_s``."""
    give_up_at = time.monotonic() + limit_s
    while True:
        answer = condition()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > give_up_at:
            pytest.fail(f"not within {limit_s} s: {what}")
        await asyncio.sleep(0.02)
