"""Which regions serve the callers of a region: home alone, until it cannot.

Home is the caller's own region, or with ``active-standby`` the one region that serves all callers. Another region
adds its latency to each request, so failover needs a lasting shortage, and failback needs more than its end. Two
things are immediate: failover when home has no engine in rotation that yields answers, and the return of the only
region that has any.

Regions differ from zones in what Envoy gets (``translate.priorities``): a region without part in ``shares`` gets
no request while one with a part is available, and takes over at once when none is, even without a control plane.
``excluded_engines`` never get any.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from policies.resilience import AcrossRevisions, Failback, Regions, ResilienceSpec, Serving
from xds_server.decide.decision_memory import Demand, RegionMemory, RegionRevisions, RegionTimer, ZoneMemory
from xds_server.decide.decisions import Health, RegionShares
from xds_server.decide.ejection.arbitration import NEGLIGIBLE_OUTSIDE
from xds_server.decide.pool_inputs import Callers, PoolEngines
from xds_server.decide.routing.zone_shares import zone_shares
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import Proxy


def region_routing(
    engines: PoolEngines,
    resilience: ResilienceSpec,
    callers: Callers,
    *,
    before: RegionMemory,
    weighed_at_s: float = -math.inf,
    now_s: float,
) -> RegionMemory:
    """The shares for callers of each region, and their zones; only revisions if all engines are in one region.

    ``weighed_at_s`` is when weights within zones last moved.
    """
    revisions = revisions_by_region(engines.engines, before.revisions, now_s)
    if len(revisions) < 2:
        return RegionMemory(revisions=revisions)
    regions = regions_by_node(callers.proxies, engines.engines)
    memory = region_shares(
        engines,
        resilience.regions,
        demand_by_region(callers.demand, regions),
        shadow=resilience.shadowed(resilience.regions.mode),
        before=replace(before, revisions=revisions),
        now_s=now_s,
    )
    zones = {}
    for region in revisions:
        own = [engine for engine in engines.engines if engine.region == region]
        there = [engine for engine in own if engines.decisions[engine.id].health is Health.HEALTHY]
        here = {node: proxy for node, proxy in callers.proxies.items() if regions[node] == region}
        own_zones = {engine.zone for engine in own}
        calling = {proxy.zone for proxy in here.values()}.union(own_zones.intersection(callers.zones))
        zones[region] = zone_shares(
            replace(engines, engines=there),
            resilience.zones,
            Callers(zones=calling, proxies=here, demand=callers.demand),
            shadow=resilience.shadowed(resilience.zones.mode),
            before=before.zones.get(region, ZoneMemory()),
            weighed_at_s=weighed_at_s,
            now_s=now_s,
        )
    return replace(memory, zones=zones)


REGION_MEMORY_S: Final = 3600.0
"""How long a region without engines counts as lost; later it counts as removed."""

MOVE_INTERVAL_S: Final = 2.0
"""Rates cover two seconds: the effect of a move is not visible earlier."""

_STEP: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _RegionInputs:
    """Inputs of one caller's shares; ``able`` and ``asked`` are requests per second by region.

    ``able`` has only regions with an engine in rotation and not excluded; ``failing`` are those of them where the
    capacity floor alone keeps every such engine. ``asked`` lacks regions without reports.
    """

    policy: Regions
    able: Mapping[str, float]
    failing: frozenset[str]
    asked: Mapping[str, float]
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallerShares:
    """The shares for the callers of one region, and their timer."""

    shares: RegionShares
    timer: RegionTimer


def revisions_by_region(
    engines: Iterable[Engine], before: Mapping[str, RegionRevisions], now_s: float
) -> dict[str, RegionRevisions]:
    """Revisions of each region with engines now or recently."""
    found: dict[str, set[str]] = {}
    for engine in engines:
        found.setdefault(engine.region, set()).add(engine.revision)
    known = {region: one for region, one in before.items() if now_s - one.seen_at_s < REGION_MEMORY_S}
    return {
        **known,
        **{
            region: RegionRevisions(revisions=frozenset(revisions), seen_at_s=now_s)
            for region, revisions in sorted(found.items())
        },
    }


def region_of(said: str, zone: str, engines: Iterable[Engine]) -> str:
    """The region of a caller: its own statement, else that of its zone's engines; empty if unknown."""
    if said or not zone:
        return said
    of_zone = {engine.region for engine in engines if engine.zone == zone}
    return of_zone.pop() if len(of_zone) == 1 else ""


def regions_by_node(proxies: Mapping[str, Proxy], engines: Sequence[Engine]) -> dict[str, str]:
    """The region of each proxy, by node id."""
    by_place = {(proxy.region, proxy.zone) for proxy in proxies.values()}
    known = {(said, zone): region_of(said, zone, engines) for said, zone in by_place}
    return {node: known[proxy.region, proxy.zone] for node, proxy in proxies.items()}


def excluded_engines(
    engines: Iterable[Engine], home: str, revisions: Mapping[str, RegionRevisions], policy: Regions
) -> frozenset[EngineId]:
    """Engines elsewhere of another revision than home's, where the policy keeps them apart."""
    own = revisions.get(home)
    if own is None or policy.across_revisions is AcrossRevisions.ANY:
        return frozenset()
    kept = {revision_key(one, policy.across_revisions) for one in own.revisions}
    return frozenset(
        engine.id
        for engine in engines
        if engine.region != home and revision_key(engine.revision, policy.across_revisions) not in kept
    )


def major_revision(revision: str) -> str:
    """The part before the first dot; a leading v is ignored."""
    return revision.partition(".")[0].lower().removeprefix("v")


def revision_key(revision: str, across: AcrossRevisions) -> str:
    """What two revisions must have in common to replace each other."""
    return major_revision(revision) if across is AcrossRevisions.SAME_MAJOR else revision


def demand_by_region(demand: Mapping[str, Demand], regions: Mapping[str, str]) -> dict[str, float]:
    """Requests per second of each region's callers; demand and regions are by node id."""
    asked: dict[str, float] = {}
    for node, one in demand.items():
        if node in regions:
            asked[regions[node]] = asked.get(regions[node], 0.0) + one.per_s
    return asked


def region_shares(
    engines: PoolEngines,
    policy: Regions,
    asked: Mapping[str, float],
    *,
    shadow: bool,
    before: RegionMemory,
    now_s: float,
) -> RegionMemory:
    """Shares for the callers of each region with engines, and of no region; none if all engines are in one.

    ``asked`` is requests per second by region. The revisions in ``before`` are current. Without any engine in
    rotation the last shares stay.
    """
    revisions = before.revisions
    if len(revisions) < 2:
        return RegionMemory(revisions=revisions)
    standby = policy.serving is Serving.ACTIVE_STANDBY and bool(policy.order)
    shares: dict[str, RegionShares] = {}
    timers: dict[str, RegionTimer] = {}
    for caller in sorted({"", *revisions}):
        out = excluded_engines(
            engines.engines, _reference_region(policy.order, revisions) if standby else caller, revisions, policy
        )
        inputs = _RegionInputs(
            policy=policy,
            able=_able(engines, out),
            failing=_failing_regions(engines, out),
            asked=asked,
            now_s=now_s,
        )
        last = None
        if (known := before.shares.get(caller)) is not None:
            last = _CallerShares(shares=known, timer=before.timers.get(caller, RegionTimer()))
        if last is not None and not inputs.able:
            # Exclusions are always current.
            same = last.shares.excluded == out
            shares[caller] = last.shares if same else replace(last.shares, excluded=out)
            timers[caller] = last.timer
            continue
        found = _active_standby(inputs, last) if standby else _active_active(inputs, caller, last)
        shares[caller] = _settled(found.shares, last, out, in_force=not shadow)
        timers[caller] = found.timer
    return RegionMemory(shares=shares, timers=timers, revisions=revisions)


def regions_due_s(timers: Mapping[str, RegionTimer], policy: Regions) -> tuple[float, ...]:
    """When time alone may change one of the shares."""
    waits_s = (policy.enter_after, policy.leave_after, policy.failback_after)
    return tuple(
        one.towards_s + wait_s for one in timers.values() if one.towards_s is not None for wait_s in waits_s
    )


def _reference_region(order: Sequence[str], revisions: Mapping[str, RegionRevisions]) -> str:
    """The region whose revisions say which engines may take over, in active-standby.

    Not the region that serves now: a failover does not change which revisions callers may get.
    """
    return next((region for region in order if region in revisions), order[0])


def _able(engines: PoolEngines, out: frozenset[EngineId]) -> dict[str, float]:
    able: dict[str, float] = {}
    for engine in engines.engines:
        if engines.decisions[engine.id].health is Health.HEALTHY and engine.id not in out:
            able[engine.region] = able.get(engine.region, 0.0) + engines.able_per_s(engine.id)
    return able


def _failing_regions(engines: PoolEngines, out: frozenset[EngineId]) -> frozenset[str]:
    """Regions with engines in rotation that all yield next to nothing."""
    kept: dict[str, bool] = {}
    for engine in engines.engines:
        decision = engines.decisions[engine.id]
        if decision.health is Health.HEALTHY and engine.id not in out:
            share = decision.traffic_percent / 100 / engines.capacities[engine.id].slowdown
            useless = share <= NEGLIGIBLE_OUTSIDE and (decision.floor or decision.traffic_percent >= 100)
            kept[engine.region] = kept.get(engine.region, True) and useless
    return frozenset(region for region, useless in kept.items() if useless)


def _active_active(inputs: _RegionInputs, caller: str, before: _CallerShares | None) -> _CallerShares:
    """Active-active: the own region, and others for the excess."""
    policy, able = inputs.policy, inputs.able
    own, others = able.get(caller, 0.0), {region: one for region, one in able.items() if region != caller}
    if not caller and able:
        return _region_shares(inputs, "", _in_parts(able), {}, "callers without region: all regions by capacity")
    if not able:
        return _region_shares(inputs, caller, {caller: 1.0}, {}, "no permitted engine in rotation")
    if not own:
        asked = inputs.asked.get(caller)
        return _region_shares(
            inputs,
            caller,
            _spread(1.0, asked, _room(inputs, others), others, policy.order),
            {},
            "no engine of the region in rotation: others serve",
            helped=True,
        )
    fits = _fits(own, inputs.asked.get(caller))
    helped, towards_s = _failover(inputs, fits, before, at_once=caller in inputs.failing)
    if not helped or not others:
        reason = "every ready engine is in the region" if not others else f"{_percent(fits)} of demand fits"
        return _region_shares(inputs, caller, {caller: 1.0}, others, reason, helped=helped, towards_s=towards_s)
    room = _room(inputs, others)
    asked = inputs.asked.get(caller, 0.0)
    wanted = max(0.0, 1 - fits)
    away = min(wanted, sum(room.values()) / asked) if asked > 0 else 0.0
    away = math.floor(away / _STEP + 1e-9) * _STEP if away < 1 else away
    last = None if before is None else before.shares
    if last is not None and last.failed_over and inputs.now_s - last.since_s < MOVE_INTERVAL_S:
        away = min(1 - last.shares.get(caller, 1.0), 1.0)
    parts = {caller: 1 - away, **_spread(away, asked, room, others, policy.order)}
    return _region_shares(
        inputs,
        caller,
        {region: part for region, part in parts.items() if part > 0},
        others,
        f"{_percent(fits)} of demand fits, {away:.0%} has room elsewhere",
        helped=True,
        towards_s=towards_s,
    )


def _active_standby(inputs: _RegionInputs, before: _CallerShares | None) -> _CallerShares:
    """Active-standby: one region for all callers, the next one when it cannot."""
    order = inputs.policy.order
    home, towards_s = order[0], None
    if before is not None and before.timer.order == order and before.shares.home in order:
        home, towards_s = before.shares.home, before.timer.towards_s
    active, reason, towards_s = _active(inputs, home, since_s=inputs.now_s if towards_s is None else towards_s)
    others = {region: inputs.able[region] for region in order if region != active and region in inputs.able}
    helped = active != order[0]
    return _region_shares(inputs, active, {active: 1.0}, others, reason, helped=helped, towards_s=towards_s)


def _active(inputs: _RegionInputs, active: str, *, since_s: float) -> tuple[str, str, float | None]:
    """The region that serves all callers from now on, the reason, and since when another is asked for."""
    policy, able = inputs.policy, inputs.able
    asked = sum(inputs.asked.values()) if inputs.asked else None
    fits = {region: _fits(able.get(region, 0.0), asked) for region in policy.order}
    enough, lasted_s, told = policy.below_percent / 100, inputs.now_s - since_s, _percent(fits[active])
    if active not in able or fits[active] < enough:
        more = [one for one in policy.order if able.get(one, 0.0) > able.get(active, 0.0)]
        better = next((one for one in more if fits[one] >= enough), next(iter(more), None))
        enter_after_s = 0.0 if active in inputs.failing else policy.enter_after
        if better is not None and active in able and lasted_s < enter_after_s:
            return active, f"{told} of demand fits; {better} takes over if this lasts", since_s
        taken = "and no region has more" if better is None else f"so {better} takes over"
        return better or active, f"{told} of demand fits in {active}, {taken}", None
    earlier = policy.order[: policy.order.index(active)]
    well = next((one for one in earlier if one in able and fits[one] >= enough * _margin(policy)), None)
    if well is None:
        return (
            active,
            "the first region of the order with capacity" if earlier else "the first region of the order",
            None,
        )
    if policy.failback is Failback.MANUAL:
        return active, f"{well} has recovered; failback is manual", None
    if lasted_s < policy.failback_after:
        return active, f"{well} has recovered, and takes over if this lasts", since_s
    return well, "recovered for long enough", None


def _failover(
    inputs: _RegionInputs, fits: float, before: _CallerShares | None, *, at_once: bool
) -> tuple[bool, float | None]:
    """Whether others help from now on, and since when the opposite is asked for. ``at_once``: without delay."""
    policy, helped = inputs.policy, before is not None and before.shares.failed_over
    towards_s = None if before is None else before.timer.towards_s
    enough = policy.below_percent / 100
    opposite = fits >= enough * _margin(policy) if helped else fits < enough
    if not opposite:
        return helped, None
    since_s = inputs.now_s if towards_s is None else towards_s
    wait_s = policy.leave_after if helped else 0.0 if at_once else policy.enter_after
    return (not helped, None) if inputs.now_s - since_s >= wait_s else (helped, since_s)


def _region_shares(
    inputs: _RegionInputs,
    home: str,
    shares: Mapping[str, float],
    others: Mapping[str, float],
    reason: str,
    *,
    helped: bool = False,
    towards_s: float | None = None,
) -> _CallerShares:
    left = {region: able for region, able in (others or inputs.able).items() if region not in shares}
    return _CallerShares(
        shares=RegionShares(
            home=home,
            shares=MappingProxyType(dict(shares)),
            failover=tuple(MappingProxyType(_in_parts(tier)) for tier in _tiers(left, inputs.policy.order)),
            excluded=frozenset(),
            reason=reason,
            since_s=inputs.now_s,
            failed_over=helped,
        ),
        timer=RegionTimer(towards_s=towards_s, order=inputs.policy.order),
    )


def _settled(
    shares: RegionShares, before: _CallerShares | None, out: frozenset[EngineId], *, in_force: bool
) -> RegionShares:
    last, since_s = None if before is None else before.shares, shares.since_s
    if last is not None and last.shares == shares.shares and last.home == shares.home:
        since_s = last.since_s
    return replace(shares, excluded=out, in_force=in_force, since_s=since_s)


def _tiers(able: Mapping[str, float], order: Sequence[str]) -> list[dict[str, float]]:
    """Failover tiers: regions of the order one by one, the others together."""
    listed = [{region: able[region]} for region in order if region in able]
    rest = {region: one for region, one in sorted(able.items()) if region not in order}
    return [*listed, rest] if rest else listed


def _room(inputs: _RegionInputs, others: Mapping[str, float]) -> dict[str, float]:
    """Requests per second that other regions can serve besides their own callers."""
    return {region: max(0.0, able - inputs.asked.get(region, 0.0)) for region, able in others.items()}


def _spread(
    part: float,
    asked: float | None,
    room: Mapping[str, float],
    able: Mapping[str, float],
    order: Sequence[str],
) -> dict[str, float]:
    """This part of the requests over other regions: by the order as far as they have room, then by room."""
    if part <= 0 or not able:
        return {}
    shares: dict[str, float] = {}
    left = part
    for region in (one for one in order if one in able):
        # If demand is unknown, the first takes it.
        takes = left if not asked else min(left, room[region] / asked)
        if takes > 0:
            shares[region] = takes
            left -= takes
    if left <= 1e-9:
        return shares
    rest = {region: room[region] for region in able if region not in order}
    rest = rest if sum(rest.values()) > 1e-9 else dict(able)
    for region, share in _in_parts(rest).items():
        if share > 0:
            shares[region] = shares.get(region, 0.0) + left * share
    return shares


def _in_parts(amounts: Mapping[str, float]) -> dict[str, float]:
    total = sum(amounts.values())
    return {key: amount / total for key, amount in sorted(amounts.items())} if total else {}


def _fits(able: float, asked: float | None) -> float:
    """The share of demand that can be served; if demand is unknown, all."""
    return able / asked if asked else (math.inf if able else 0.0)


def _margin(policy: Regions) -> float:
    return 1 + policy.margin_percent / 100


def _percent(fits: float) -> str:
    return "all" if fits >= 1 else f"{fits:.0%}"
