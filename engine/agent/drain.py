"""Draining: complete when no proxy sends requests and none is in flight, or at the deadline.

Control planes report which proxies acknowledged the drain; the engine's own count gives requests in flight. Both
must confirm. Without a watching control plane, the engine must stay idle for ``UNWATCHED_QUIET_S``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from engine.agent.agent_engine_state import EngineHealthState
from engine.watch_server import RemovalProgress

# One reading may fall between a request's arrival and its count.
IDLE_READINGS: Final = 2
# Without a control plane, traffic ends only after the reader of /readyz has polled it.
UNWATCHED_QUIET_S: Final = 2.0


class DrainOutcome(StrEnum):
    """How a wait for a drain ended."""

    DRAINED = "drained"
    DEADLINE = "deadline"
    UNDRAINED = "undrained"  # cancelled by undrain


_HEADLINES: Final = {
    DrainOutcome.DRAINED: "Drained after",
    DrainOutcome.DEADLINE: "Not drained within",
    DrainOutcome.UNDRAINED: "Cancelled by undrain after",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """State of the drain when the wait ended. ``in_flight`` is None if unknown."""

    outcome: DrainOutcome
    waited_s: float
    in_flight: int | None
    removal: RemovalProgress
    sentence: str


class DrainWaiter:
    """Waits for drains. Call ``notify`` when the engine state or the removal may have changed."""

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
        """Wake every waiter."""
        for wake in self._wakes:
            wake.set()

    async def wait(self, until_s: Callable[[], float]) -> DrainResult:
        """Wait for the end of the ordered drain, at most until ``until_s()`` on the clock, which may change."""
        began_s = self._clock()
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            while True:
                wake.clear()
                deadline_s = until_s()
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
        waited_s = self._clock() - began_s
        held = "unknown" if in_flight is None else str(in_flight)
        proxies = f"{removal.proxies_acknowledged} of {removal.proxies_total} proxies acknowledged"
        watchers = f"{removal.heard} of {removal.watchers}" if removal.watchers else "none"
        return DrainResult(
            outcome=outcome,
            waited_s=round(waited_s, 3),
            in_flight=in_flight,
            removal=removal,
            sentence=f"{_HEADLINES[outcome]} {waited_s:.1f} s: requests in flight: {held}; {proxies}; "
            f"control planes notified: {watchers}.",
        )


def is_drained(now: EngineHealthState, removal: RemovalProgress, waited_s: float) -> bool:
    """Whether no proxy sends requests and none is in flight."""
    if now.in_flight != 0 or now.idle_readings < IDLE_READINGS:
        return False
    return removal.complete and (removal.watchers > 0 or waited_s >= UNWATCHED_QUIET_S)
