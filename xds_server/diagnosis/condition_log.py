"""Conditions of a running server, with the time since when each has lasted.

Computing them costs milliseconds in a large fleet. ``recent`` is for views that are drawn every second: it
computes again after a second, and after a multiple of what the last time took.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from xds_server.admin_api.status_types import Condition
from xds_server.diagnosis.conditions import ServerState, conditions

CHECK_EACH_S: Final = 5.0
"""Poll interval: without a reader, ages are this exact."""

FRESH_S: Final = 1.0

REST_PER_LOOK: Final = 20.0
"""Limits ``recent`` to a twentieth of the time."""

SAME_S: Final = 2.0
"""Times that differ by less are the same: ages are rounded, and read at different moments."""


class ConditionLog:
    """Conditions of ``state``; see the module."""

    def __init__(self, state: Callable[[], ServerState], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._since: dict[tuple[str, str, int], float] = {}
        self._latest: tuple[Condition, ...] = ()
        self._due_s = float("-inf")

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self.recent()
            await asyncio.sleep(CHECK_EACH_S)

    def recent(self) -> tuple[Condition, ...]:
        """Conditions of a moment ago, the most severe first."""
        return self.current() if self._clock() >= self._due_s else self._latest

    def current(self) -> tuple[Condition, ...]:
        """Conditions now, the most severe first."""
        began_s = self._clock()
        state = self._state()
        known, self._since = self._since, {}
        seen: Counter[tuple[str, str]] = Counter()
        found = []
        for one in conditions(state):
            key = (*one.key, seen[one.key])
            seen[one.key] += 1
            since = _since(known.get(key), one.since_unix_s, state.now_unix_s)
            self._since[key] = since
            found.append(replace(one, since_unix_s=since))
        self._latest = tuple(found)
        ended_s = self._clock()
        self._due_s = ended_s + max(FRESH_S, REST_PER_LOOK * (ended_s - began_s))
        return self._latest


def _since(known: float | None, found: float | None, now_unix_s: float) -> float:
    if known is not None and (found is None or abs(found - known) < SAME_S):
        return known
    return round(now_unix_s if found is None else found, 3)
