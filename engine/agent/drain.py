"""Draining: told once, done when no proxy sends here any more and nothing is in flight, or when time is up.

Only the control planes know which proxies have heard that this engine takes nothing new, and only the engine's own
count knows what is still running; both have to say so. With no control plane watching there is nobody to hear it
from, and quiet has to last before it is believed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from engine.agent.agent_engine_state import EngineHealthState
from engine.watch_server import RemovalProgress

# One look may fall between a request's arrival and its count.
IDLE_READINGS: Final = 2
# Without a control plane, traffic ends when whoever asks /readyz has noticed: not at once.
UNWATCHED_QUIET_S: Final = 2.0


class DrainOutcome(StrEnum):
    """How a wait for a drain ended."""

    DRAINED = "drained"
    DEADLINE = "deadline"
    UNDRAINED = "undrained"  # somebody took the order back


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """How far the drain came, when the wait for it ended. ``in_flight`` is None when nobody can know."""

    outcome: DrainOutcome
    waited_s: float
    in_flight: int | None
    removal: RemovalProgress
    sentence: str


class DrainWaiter:
    """Waits for drains. Tell it with ``notify`` whenever the standing or the removal may be different."""

    def __init__(
        self,
        standing: Callable[[], EngineHealthState],
        removal: Callable[[], RemovalProgress],
        clock: Callable[[], float],
    ) -> None:
        self._standing = standing
        self._removal = removal
        self._clock = clock
        self._wakes: set[asyncio.Event] = set()

    def notify(self) -> None:
        """Let everyone who waits look again."""
        for wake in self._wakes:
            wake.set()

    async def wait(self, deadline_s: float) -> DrainResult:
        """How the drain that was ordered ended, at the latest at ``deadline_s`` on the clock."""
        began_s = self._clock()
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            while True:
                wake.clear()
                outcome = self._outcome(began_s, deadline_s)
                if outcome is not None:
                    return self._answer(outcome, began_s)
                try:
                    async with asyncio.timeout(min(deadline_s - self._clock(), UNWATCHED_QUIET_S)):
                        await wake.wait()
                except TimeoutError:
                    continue
        finally:
            self._wakes.discard(wake)

    def _outcome(self, began_s: float, deadline_s: float) -> DrainOutcome | None:
        now, at_s = self._standing(), self._clock()
        if now.order is None:
            return DrainOutcome.UNDRAINED
        if is_drained(now, self._removal(), at_s - began_s):
            return DrainOutcome.DRAINED
        return DrainOutcome.DEADLINE if at_s >= deadline_s else None

    def _answer(self, outcome: DrainOutcome, began_s: float) -> DrainResult:
        removal, in_flight = self._removal(), self._standing().in_flight
        held = "an unknown number of requests" if in_flight is None else f"{in_flight} requests"
        proxies = f"{removal.proxies_acknowledged} of {removal.proxies_total} proxies acknowledged"
        watchers = f"{removal.heard} of {removal.watchers}" if removal.watchers else "none"
        return DrainResult(
            outcome=outcome,
            waited_s=round(self._clock() - began_s, 3),
            in_flight=in_flight,
            removal=removal,
            sentence=f"{outcome}: {held} in flight; {proxies}, control planes heard: {watchers}",
        )


def is_drained(now: EngineHealthState, removal: RemovalProgress, waited_s: float) -> bool:
    """Whether nobody sends here any more and nothing is left to finish."""
    if now.in_flight != 0 or now.idle_readings < IDLE_READINGS:
        return False
    return removal.complete and (removal.watchers > 0 or waited_s >= UNWATCHED_QUIET_S)
