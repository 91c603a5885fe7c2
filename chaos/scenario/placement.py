"""Placement of engines and proxies, and target selection. Pure: the seed decides all random choices."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chaos.faults.target_kind import TargetKind
from chaos.scenario.experiment_plan import CLIENTS, CONTROL_PLANE, EnginePlacement, ProxyPlacement
from chaos.scenario.scenario_model import EngineGroupSpec, FaultSpec, FaultTarget, ScenarioSpec, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTargets:
    """The selected targets. ``left`` is their number before ``fraction`` or ``count``."""

    names: tuple[str, ...]
    left: int


def engine_placements(spec: ScenarioSpec) -> tuple[EnginePlacement, ...]:
    """Engines of the pool under test, in group order; those without a zone go to the zones round robin."""
    return _placed(spec.topology, spec.topology.engines, "e")


def fallback_placements(spec: ScenarioSpec) -> tuple[tuple[EnginePlacement, ...], ...]:
    """Engines of each fallback pool, in chain order."""
    chain = spec.topology.fallbacks
    return tuple(_placed(spec.topology, one.engines, f"f{number}-e") for number, one in enumerate(chain))


def prefill_placements(spec: ScenarioSpec) -> tuple[EnginePlacement, ...]:
    """Engines of the prefill pool."""
    return _placed(spec.topology, spec.topology.prefill, "prefill-e")


def other_engines(spec: ScenarioSpec) -> tuple[EnginePlacement, ...]:
    """Engines of the pools that serve the one under test: prefill and fallbacks."""
    fallbacks = (one for pool in fallback_placements(spec) for one in pool)
    return (*prefill_placements(spec), *fallbacks)


def every_engine(spec: ScenarioSpec) -> tuple[EnginePlacement, ...]:
    """Engines of all pools."""
    return (*engine_placements(spec), *other_engines(spec))


def target_pool(spec: ScenarioSpec, target: FaultTarget) -> tuple[EnginePlacement, ...]:
    """Engines of the pool that a fault on engines hits: the one under test, or the one that the target names."""
    if target.stage is not None:
        return prefill_placements(spec)
    if target.fallback is None:
        return engine_placements(spec)
    chain = fallback_placements(spec)
    return chain[target.fallback] if target.fallback < len(chain) else ()


def zone_regions(topology: Topology) -> Mapping[str, str]:
    """Region by zone, without zones of no region."""
    return {zone: region.name for region in topology.regions for zone in region.zones}


def _placed(topology: Topology, groups: Sequence[EngineGroupSpec], prefix: str) -> tuple[EnginePlacement, ...]:
    zones, regions = topology.zones, zone_regions(topology)
    found: list[EnginePlacement] = []
    dealt = 0
    for group in groups:
        for _ in range(group.count):
            zone = group.zone or zones[dealt % len(zones)]
            dealt += not group.zone
            found.append(
                EnginePlacement(
                    name=f"{prefix}{len(found)}",
                    zone=zone,
                    slots=group.slots,
                    slowness=group.slowness,
                    region=regions.get(zone, ""),
                )
            )
    return tuple(found)


def proxy_placements(spec: ScenarioSpec) -> tuple[ProxyPlacement, ...]:
    """All proxies, in group order; those without a zone are in the first one."""
    groups = [group for group in spec.topology.proxies for _ in range(group.count)]
    regions = zone_regions(spec.topology)
    return tuple(
        ProxyPlacement(name=f"p{number}", zone=zone, demand=group.demand, region=regions.get(zone, ""))
        for number, group in enumerate(groups)
        for zone in (group.zone or spec.topology.zones[0],)
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
            return _cut(target_pool(spec, target), target, target.engine, spec.seed)
        case TargetKind.PROXIES:
            return _cut(proxy_placements(spec), target, target.proxy, spec.seed)
        case TargetKind.ZONES:
            spots: tuple[EnginePlacement | ProxyPlacement, ...] = (*every_engine(spec), *proxy_placements(spec))
            names = tuple(one.name for one in spots if _is_inside(one, target))
            return SelectedTargets(names=names, left=len(names))


def _is_inside(one: EnginePlacement | ProxyPlacement, target: FaultTarget) -> bool:
    return target.zone in {None, one.zone} and target.region in {None, one.region}


def _cut(
    spots: Sequence[EnginePlacement | ProxyPlacement], target: FaultTarget, number: int | None, seed: int
) -> SelectedTargets:
    left = {
        place for place, one in enumerate(spots) if (number is None or place == number) and _is_inside(one, target)
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
