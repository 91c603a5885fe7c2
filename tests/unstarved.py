"""Check what must never happen, on a machine where any process may be starved of CPU for a while.

Peers correctly report a starved process as silent: such an observation shows the machine, not a defect.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

Seen = TypeVar("Seen")

_LONGEST_S: Final = 0.4
"""Standing still for so long goes unnoticed: the shortest patience of ours is a second."""
_LOOKS: Final = 10
_PULSE_S: Final = 0.01


async def without_starvation(look: Callable[[], Awaitable[Seen]]) -> Seen:
    """What a look saw during which this process was never kept from running; of ten, the last counts anyway."""
    for _ in range(_LOOKS):
        pulse = asyncio.create_task(_longest_stop_s())
        try:
            seen = await look()
        finally:
            pulse.cancel()
        if await pulse < _LONGEST_S:
            break
    return seen


async def _longest_stop_s() -> float:
    """How late this task was at most until it was cancelled."""
    longest_s, due_s = 0.0, time.monotonic()
    while True:
        try:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        except asyncio.CancelledError:
            return max(longest_s, time.monotonic() - due_s)
        longest_s = max(longest_s, time.monotonic() - due_s)
        due_s = time.monotonic() + _PULSE_S
