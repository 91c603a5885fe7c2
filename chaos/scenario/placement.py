"""Placement of engines and proxies, and target selection. Pure: the seed decides all random choices."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.faults.target_kind import TargetKind
from chaos.scenario.experiment_plan import CLIENTS, CONTROL_PLANE, EnginePlacement, ProxyPlacement
from chaos.scenario.scenario_model import FaultSpec, FaultTarget, ScenarioSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTargets:
    """The selected targets. ``left`` is their number before ``fraction`` or ``count``."""

    names: tuple[str, ...]
    left: int


def engine_placements(spec: ScenarioSpec) -> tuple[EnginePlacement, ...]:
    """All engines, in group order; those without a zone are spread over the zones round robin."""
    zones = spec.topology.zones
    found: list[EnginePlacement] = []
    dealt = 0
    for group in spec.topology.engines:
        for _ in range(group.count):
            zone = group.zone or zones[dealt % len(zones)]
            dealt += not group.zone
            found.append(
                EnginePlacement(name=f"e{len(found)}", zone=zone, slots=group.slots, slowness=group.slowness)
            )
    return tuple(found)


def proxy_placements(spec: ScenarioSpec) -> tuple[ProxyPlacement, ...]:
    """All proxies, in group order; those without a zone are in the first one."""
    groups = [group for group in spec.topology.proxies for _ in range(group.count)]
    return tuple(
        ProxyPlacement(name=f"p{number}", zone=group.zone or spec.topology.zones[0], demand=group.demand)
        for number, group in enumerate(groups)
    )


def selected_targets(spec: ScenarioSpec, strike: FaultSpec) -> SelectedTargets:
    """Targets of a fault; empty if nothing matches.

    ``fraction`` and ``count`` draw from one seeded order for the whole scenario. So two faults with the same
    filter hit different engines if one skips as many as the other takes.
    """
    target = strike.target
    match strike.fault.aim:
        case TargetKind.CONTROL_PLANE:
            return SelectedTargets(names=(CONTROL_PLANE,), left=1)
        case TargetKind.CLIENTS:
            return SelectedTargets(names=(CLIENTS,), left=1)
        case TargetKind.ENGINES:
            return _cut(engine_placements(spec), target, target.engine, spec.seed)
        case TargetKind.PROXIES:
            return _cut(proxy_placements(spec), target, target.proxy, spec.seed)
        case TargetKind.ZONES:
            spots: tuple[EnginePlacement | ProxyPlacement, ...] = (
                *engine_placements(spec),
                *proxy_placements(spec),
            )
            names = tuple(one.name for one in spots if target.zone in {None, one.zone})
            return SelectedTargets(names=names, left=len(names))


def _cut(
    spots: Sequence[EnginePlacement | ProxyPlacement], target: FaultTarget, number: int | None, seed: int
) -> SelectedTargets:
    left = {
        place
        for place, one in enumerate(spots)
        if (number is None or place == number) and (target.zone is None or one.zone == target.zone)
    }
    if target.fraction is None and target.count is None and not target.skip:
        return SelectedTargets(names=tuple(spots[place].name for place in sorted(left)), left=len(left))
    order = list(range(len(spots)))
    # A separate generator, so that the number of requests drawn does not change the targets.
    random.Random(f"who is hit {seed}").shuffle(order)  # noqa: S311 - reproducible choice, not a secret
    drawn = [place for place in order if place in left][target.skip :]
    if target.count is not None:
        taken = drawn[: target.count]
    elif target.fraction is not None:
        # Round half up, and hit at least one target.
        taken = drawn[: max(1, int(target.fraction * len(drawn) + 0.5))]
    else:
        taken = drawn
    return SelectedTargets(names=tuple(spots[place].name for place in sorted(taken)), left=len(drawn))
