"""Where everything of a scenario stands, and which of it a target means. Pure: the seed is all of chance."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.faults.fault import Aim
from chaos.scenario.model import ScenarioSpec, Strike, Target
from chaos.scenario.plan import CLIENTS, CONTROL_PLANE, EngineSpot, ProxySpot


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """Whom a target means. ``left`` is how many there were before ``fraction`` and ``count`` cut them down."""

    names: tuple[str, ...]
    left: int


def engines(spec: ScenarioSpec) -> tuple[EngineSpot, ...]:
    """Every engine, in the order of the groups; those without a zone are dealt out to the zones in turn."""
    zones = spec.topology.zones
    found: list[EngineSpot] = []
    dealt = 0
    for group in spec.topology.engines:
        for _ in range(group.count):
            zone = group.zone or zones[dealt % len(zones)]
            dealt += not group.zone
            found.append(EngineSpot(name=f"e{len(found)}", zone=zone, slots=group.slots, slowness=group.slowness))
    return tuple(found)


def proxies(spec: ScenarioSpec) -> tuple[ProxySpot, ...]:
    """Every Envoy, in the order of the groups; those without a zone stand in the first."""
    groups = [group for group in spec.topology.proxies for _ in range(group.count)]
    return tuple(
        ProxySpot(name=f"p{number}", zone=group.zone or spec.topology.zones[0], demand=group.demand)
        for number, group in enumerate(groups)
    )


def picked(spec: ScenarioSpec, strike: Strike) -> Picked:
    """Whom the strike's target means; nobody where it asks for what is not there.

    A part of several is drawn by the seed, from one order for the whole scenario: two strikes that filter alike
    and of which one skips as many as the other takes never hit the same engine.
    """
    target = strike.target
    match strike.fault.aim:
        case Aim.CONTROL_PLANE:
            return Picked(names=(CONTROL_PLANE,), left=1)
        case Aim.CLIENTS:
            return Picked(names=(CLIENTS,), left=1)
        case Aim.ENGINES:
            return _cut(engines(spec), target, target.engine, spec.seed)
        case Aim.PROXIES:
            return _cut(proxies(spec), target, target.proxy, spec.seed)
        case Aim.ZONES:
            spots: tuple[EngineSpot | ProxySpot, ...] = (*engines(spec), *proxies(spec))
            names = tuple(one.name for one in spots if target.zone in {None, one.zone})
            return Picked(names=names, left=len(names))


def _cut(spots: Sequence[EngineSpot | ProxySpot], target: Target, number: int | None, seed: int) -> Picked:
    left = {
        place
        for place, one in enumerate(spots)
        if (number is None or place == number) and (target.zone is None or one.zone == target.zone)
    }
    if target.fraction is None and target.count is None and not target.skip:
        return Picked(names=tuple(spots[place].name for place in sorted(left)), left=len(left))
    order = list(range(len(spots)))
    # A number of its own, so that who is hit does not change with how many requests are drawn.
    random.Random(f"who is hit {seed}").shuffle(order)  # noqa: S311 - chance that can be had again, no secret
    drawn = [place for place in order if place in left][target.skip :]
    if target.count is not None:
        taken = drawn[: target.count]
    elif target.fraction is not None:
        # Half an engine counts as one, and no fault hits nobody.
        taken = drawn[: max(1, int(target.fraction * len(drawn) + 0.5))]
    else:
        taken = drawn
    return Picked(names=tuple(spots[place].name for place in sorted(taken)), left=len(drawn))
