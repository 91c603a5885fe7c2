"""What goes wrong, and when: a list from a seed. Never more than a share of the engines is broken at a time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

BROKEN_PERCENT: Final = 20
"""Of the engines at once: well above the capacity floor, so that those that stay can serve everything."""

QUIET_S: Final = 4.0
"""Nothing begins this close to the end: what was broken is to be well again when it is looked at last."""


class What(StrEnum):
    """Kinds of trouble."""

    HANG = "hang"
    CRASH = "crash"
    ERRORS = "errors"
    EDIT = "edit"
    AGENT_KILLED = "agent_killed"
    CONTROL_PLANE_KILLED = "control_plane_killed"


ENGINE_FAULTS: Final = (What.HANG, What.CRASH, What.ERRORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One thing that goes wrong at ``at_s``, over after ``lasts_s``; ``engine`` is which, where it is one."""

    at_s: float
    what: What
    lasts_s: float = 0.0
    engine: int = 0


def plan(seed: int, length_s: float, *, engines: int, agents: int, kills: int) -> Sequence[Trouble]:
    """All trouble of a soak, in order; the control plane is killed ``kills`` times, in the first two thirds."""
    rng = random.Random(seed)
    found = [
        Trouble(at_s=rng.uniform(1.0, max(1.0, length_s * 2 / 3)), what=What.CONTROL_PLANE_KILLED)
        for _ in range(kills)
    ]
    most = max(1, engines * BROKEN_PERCENT // 100)
    broken: dict[int, float] = {}
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(1 / 1.5)) < length_s - QUIET_S:
        broken = {engine: until_s for engine, until_s in broken.items() if until_s > at_s}
        what = rng.choice((*ENGINE_FAULTS, *ENGINE_FAULTS, What.EDIT, What.AGENT_KILLED))
        if what in ENGINE_FAULTS:
            well = [engine for engine in range(engines) if engine not in broken]
            lasts_s = min(rng.uniform(1.0, 8.0), length_s - QUIET_S - at_s)
            if len(broken) < most:
                engine = rng.choice(well)
                # Some time to come back in counts as broken, too.
                broken[engine] = at_s + lasts_s + 5.0
                found.append(Trouble(at_s=at_s, what=what, lasts_s=lasts_s, engine=engine))
        else:
            found.append(Trouble(at_s=at_s, what=what, engine=rng.randrange(agents) if agents else 0))
    return sorted(found, key=lambda one: one.at_s)
