"""Slots that were idle while requests were refused. Pure, from the engine logs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chaos.history.recorded_history import History
from chaos.history.request_outcomes import OutcomeReason
from chaos.measures.impairments import Impairment

STEP_S: Final = 0.1
GRACE_S: Final = 2.0
"""Grace period before a healed engine counts as idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSlots:
    """Idle slots while requests were refused.

    ``shed`` requests were refused within ``seconds`` in total. ``slot_s`` is the healthy engines' slot time then,
    ``idle_s`` the unused part; ``idlest`` is the engine with the most of it, ``first_s`` the first time.
    """

    shed: int
    seconds: float
    slot_s: float
    idle_s: float
    idlest: str
    first_s: float | None

    @property
    def percent(self) -> float:
        """Idle share of slot time in percent; 0 if no request was refused."""
        return 100.0 * self.idle_s / self.slot_s if self.slot_s else 0.0


def idle_slots(history: History, troubles: Sequence[Impairment]) -> IdleSlots:
    """Idle slots of the whole experiment. Refused batch requests do not count: they yield on purpose."""
    shed_s = [one.ended_at_s for one in history.requests if one.reason is OutcomeReason.SHED and not one.batch]
    steps = sorted({_step(at_s) for at_s in shed_s if at_s < history.end_s})
    busy = _busy(history)
    idle = dict.fromkeys(history.slots, 0.0)
    slot_s = 0.0
    for step in steps:
        at_s = step * STEP_S
        for engine, slots in history.slots.items():
            if any(
                one.engine == engine and one.start_s - STEP_S <= at_s < one.end_s + GRACE_S for one in troubles
            ):
                continue
            slot_s += slots * STEP_S
            idle[engine] += max(0.0, slots * STEP_S - busy.get((engine, step), 0.0))
    return IdleSlots(
        shed=len(shed_s),
        seconds=len(steps) * STEP_S,
        slot_s=slot_s,
        idle_s=sum(idle.values()),
        idlest=max(idle, key=idle.__getitem__, default=""),
        first_s=min(shed_s, default=None),
    )


def _step(at_s: float) -> int:
    return math.floor(at_s / STEP_S)


def _busy(history: History) -> dict[tuple[str, int], float]:
    """Used slot seconds per engine and step."""
    found: dict[tuple[str, int], float] = {}
    for one in history.attempts:
        if one.started_at_s is None:
            continue
        end_s = one.started_at_s + one.slot_s
        for step in range(_step(one.started_at_s), _step(end_s) + 1):
            part_s = min(end_s, (step + 1) * STEP_S) - max(one.started_at_s, step * STEP_S)
            key = (one.engine, step)
            found[key] = found.get(key, 0.0) + max(0.0, part_s)
    return found
