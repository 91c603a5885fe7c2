"""What goes wrong, and when: a list from a seed. Never more than a share of the engines is broken at a time."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

BROKEN_PERCENT: Final = 20
"""Of the engines at once: well above the capacity floor, so that those that stay can serve everything."""

QUIET_S: Final = 4.0
"""Nothing begins this close to the end: what was broken is to be well again when it is looked at last."""

CLOCK_JUMPS_S: Final = (-86_400.0, -600.0, 3_600.0, 10 * 86_400.0)

KILLED_UNTIL: Final = 1 / 3
"""Share of the time in which the control plane is killed: the last one is to live long enough to be measured."""


class SoakFault(StrEnum):
    """Kinds of trouble."""

    HANG = "hang"
    CRASH = "crash"
    ERRORS = "errors"
    SLOW = "slow"
    SHED = "shed"
    EDIT = "edit"
    BAD_EDIT = "bad_edit"
    AGENT_KILLED = "agent_killed"
    CONTROL_PLANE_KILLED = "control_plane_killed"
    ENVOY_KILLED = "envoy_killed"
    NO_DESCRIPTORS = "no_descriptors"  # of the control plane
    ENEMY_REPLACED = "enemy_replaced"  # by one with another seed
    CONTROL_PLANE_PAUSED = "control_plane_paused"  # its clocks jump, as after a pause of its machine
    CLOCK_JUMPED = "clock_jumped"  # the wall clock of the control plane, and back
    ADDRESS_SPACE_LIMITED = "address_space_limited"  # the control plane is killed and comes back with ulimit -v
    ENVOY_HOT_RESTARTED = "envoy_hot_restarted"  # again and again


ENGINE_FAULTS: Final = (SoakFault.HANG, SoakFault.CRASH, SoakFault.ERRORS, SoakFault.SLOW, SoakFault.SHED)
_OTHERS: Final = (SoakFault.EDIT, SoakFault.EDIT, SoakFault.BAD_EDIT, SoakFault.AGENT_KILLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One thing that goes wrong at ``at_s``, over after ``lasts_s``; ``which`` one, where there are several.

    ``by_s``: how far a clock jumps.
    """

    at_s: float
    what: SoakFault
    lasts_s: float = 0.0
    which: int = 0
    by_s: float = 0.0


def fault_plan(
    seed: int, length_s: float, *, engines: int, agents: int, envoys: int, kills: int, replicas: int = 1
) -> Sequence[PlannedFault]:
    """All trouble of a soak, in order; control planes are killed ``kills`` times, in turn, all of them early.

    So often Envoys are, at any time, and the control plane lacks descriptors or stands still, its clock jumps, and
    the enemy is replaced; half as often the control plane comes back with little address space, and an Envoy
    restarts hot. The last Envoy and the last agent never are killed: they are there to be measured.
    """
    rng = random.Random(seed)
    found = [
        PlannedFault(
            at_s=rng.uniform(1.0, max(1.0, length_s * KILLED_UNTIL)),
            what=SoakFault.CONTROL_PLANE_KILLED,
            which=number % replicas,
        )
        for number in range(kills)
    ]
    if envoys > 1:
        found += [
            PlannedFault(
                at_s=rng.uniform(1.0, max(1.0, length_s - QUIET_S)),
                what=SoakFault.ENVOY_KILLED,
                which=rng.randrange(envoys - 1),
            )
            for _ in range(kills)
        ]
    rare = random.Random(f"rare {seed}")  # leaves the other draws of a seed as they were
    for what in (SoakFault.NO_DESCRIPTORS, SoakFault.ENEMY_REPLACED, SoakFault.CONTROL_PLANE_PAUSED):
        for number in range(kills):
            at_s, lasts_s = rare.uniform(1.0, max(1.0, length_s - 2 * QUIET_S)), rare.uniform(1.0, QUIET_S)
            found.append(PlannedFault(at_s=at_s, what=what, lasts_s=lasts_s, which=number % replicas))
    found += _rarest(rare, length_s, kills, envoys, replicas)
    most = max(1, engines * BROKEN_PERCENT // 100)
    broken: dict[int, float] = {}
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(1 / 1.5)) < length_s - QUIET_S:
        broken = {engine: until_s for engine, until_s in broken.items() if until_s > at_s}
        what = rng.choice((*ENGINE_FAULTS, *ENGINE_FAULTS, *_OTHERS))
        lasts_s = min(rng.uniform(1.0, 8.0), length_s - QUIET_S - at_s)
        if what in ENGINE_FAULTS:
            well = [engine for engine in range(engines) if engine not in broken]
            if len(broken) < most:
                engine = rng.choice(well)
                # Some time to come back in counts as broken, too.
                broken[engine] = at_s + lasts_s + 5.0
                found.append(PlannedFault(at_s=at_s, what=what, lasts_s=lasts_s, which=engine))
        elif what is SoakFault.AGENT_KILLED:
            if agents > 1:
                found.append(PlannedFault(at_s=at_s, what=what, which=rng.randrange(agents - 1)))
        else:
            found.append(
                PlannedFault(at_s=at_s, what=what, lasts_s=lasts_s if what is SoakFault.BAD_EDIT else 0.0)
            )
    return sorted(found, key=lambda one: one.at_s)


def _rarest(rng: random.Random, length_s: float, kills: int, envoys: int, replicas: int) -> Iterator[PlannedFault]:
    """Jumps of the wall clock, restarts with little address space, and hot restarts."""
    end_s = max(1.0, length_s - 2 * QUIET_S)
    for number in range(kills):
        yield PlannedFault(
            at_s=rng.uniform(1.0, end_s),
            what=SoakFault.CLOCK_JUMPED,
            which=number % replicas,
            lasts_s=rng.uniform(1.0, QUIET_S),
            by_s=rng.choice(CLOCK_JUMPS_S),
        )
    for number in range(-(-kills // 2)):
        yield PlannedFault(
            at_s=rng.uniform(1.0, max(1.0, length_s * KILLED_UNTIL)),
            what=SoakFault.ADDRESS_SPACE_LIMITED,
            which=number % replicas,
        )
        if envoys > 1:
            yield PlannedFault(
                at_s=rng.uniform(1.0, max(1.0, length_s - 10 * QUIET_S)),
                what=SoakFault.ENVOY_HOT_RESTARTED,
                which=rng.randrange(envoys - 1),
            )
