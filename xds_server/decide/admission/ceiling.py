"""How much may be in flight to a pool, and each proxy's part of it: the admission ceiling.

What the whole pool takes (``whole``) is divided by what proxies are asked for (``demand``, ``proxy_limits``).
Everything above is refused at once, which costs nothing, instead of after a queue that costs the caller its
deadline and the engine work nobody waits for. Requests that are stuck on engines that are out (``held``) are added
for the proxies that hold them, or half an outage would become a whole.

Demand that drifts moves each part at most five times a second.

Where no proxy tells what arrives, gateways share evenly and each sidecar gets the whole: without knowing which of
a thousand will ask, a thousandth each would refuse almost everyone.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.resilience import ResilienceSpec
from policies.route import PriorityClass
from xds_server.decide.admission.pool_limit import ESTIMATE_STEP, ReadyCapacity, ready_capacity, total_ceiling
from xds_server.decide.admission.proxy_limits import (
    ProxyLimit,
    Sharers,
    Supply,
    class_limits,
    damped_limits,
    even_share,
    idle_sidecar_limit,
    proxy_limits,
    round_up,
)
from xds_server.decide.admission.retry_budget import retry_budget
from xds_server.decide.admission.stuck_requests import in_flight_by_proxy, stuck_by_proxy
from xds_server.decide.decision_memory import AdmissionMemory, Demand
from xds_server.decide.decisions import AdmissionDecision, Ceiling, DegradationState, EngineDecision, Health
from xds_server.decide.pool_inputs import ConnectedProxies, PoolEngines, PoolPolicy
from xds_server.model.memo import reuse_equal, reuse_mapping
from xds_server.model.pool_traffic import STALE_S, PoolTraffic, ProxyTraffic
from xds_server.model.view import GATEWAY

_KEPT: Final = 0.6
_PER_S: Final = 0.5
"""Of what was known, 0.6 is left after half a second: this made two proxies with a demand of 3:1, swapped in the
middle of a fault, share without loss. Rates are already over two seconds."""

_LONGEST_LOOK_S: Final = 1.0
_TRIFLE: Final = 0.01


def smoothed_demand(
    nodes: Collection[str], traffic: PoolTraffic | None, before: Mapping[str, Demand], now_s: float
) -> dict[str, Demand]:
    """The demand at each of ``nodes`` of which there is fresh telemetry."""
    if traffic is None:
        return {}
    oldest_s = now_s - STALE_S
    return {
        node: _demand(seen, before.get(node), now_s)
        for node, seen in traffic.proxies.items()
        if seen.heard_at_s >= oldest_s and node in nodes
    }


def _demand(seen: ProxyTraffic, known: Demand | None, now_s: float) -> Demand:
    interactive = seen.arrivals_per_s.get(PriorityClass.INTERACTIVE, 0.0)
    batch = seen.arrivals_per_s.get(PriorityClass.BATCH, 0.0)
    sheds_interactive = seen.shed_per_s.get(PriorityClass.INTERACTIVE, 0.0) > 0
    sheds_batch = seen.shed_per_s.get(PriorityClass.BATCH, 0.0) > 0
    if known is not None:
        if (
            _same(interactive, known.interactive_per_s)
            and _same(batch, known.batch_per_s)
            and sheds_interactive == known.sheds_interactive
            and sheds_batch == known.sheds_batch
        ):
            return known
        # A long pause between two looks is no reason to jump.
        kept = _KEPT ** (min(now_s - known.at_s, _LONGEST_LOOK_S) / _PER_S)
        interactive = _smoothed(known.interactive_per_s, interactive, kept, sheds_interactive)
        batch = _smoothed(known.batch_per_s, batch, kept, sheds_batch)
    return Demand(
        interactive_per_s=interactive,
        batch_per_s=batch,
        sheds_interactive=sheds_interactive,
        sheds_batch=sheds_batch,
        at_s=now_s,
    )


def _smoothed(known: float, seen: float, kept: float, sheds: bool) -> float:
    smooth = kept * known + (1 - kept) * seen
    # Who refuses callers now must not wait until an average believes in them.
    return max(smooth, seen) if sheds else smooth


def _same(seen: float, known: float) -> bool:
    return abs(seen - known) <= _TRIFLE * known


_DIVIDED_EACH_S: Final = 0.5
"""Parts are divided anew so often where neither the traffic nor anything else is new: only its age is then. Among
many proxies also where traffic is new, while all they ask for has room and none of them refuses a caller."""

_MANY: Final = 50
"""Proxies that tell of a pool, from which on dividing it costs more than a round may."""

_CALM: Final = 0.9
"""Pressure below which a pool that was asked for all it can serve counts as calm again."""


def classes_by_pool(policies: PolicySet) -> Mapping[str, frozenset[PriorityClass]]:
    """The priority classes whose routes lead to each pool, as target or as fallback."""
    classes: dict[str, set[PriorityClass]] = {}
    for route in policies.routes.values():
        reached = [share.pool for share in route.spec.pools]
        if route.spec.fallback is not None:
            reached.append(route.spec.fallback)
        for pool in reached:
            classes.setdefault(pool, set()).add(route.spec.priority)
    return {pool: frozenset(found) for pool, found in classes.items()}


def admission_decision(
    policy: PoolPolicy,
    engines: PoolEngines,
    *,
    traffic: PoolTraffic | None,
    proxies: ConnectedProxies,
    degradation: DegradationState | None,
    before: AdmissionMemory | None,
    now_s: float,
) -> AdmissionMemory:
    """What is let in of the pool's traffic now, and each connected proxy's part.

    Where no part has moved, ``by_proxy`` is the very same mapping as ``before``.
    """
    pool, resilience, classes, by_role = policy.spec, policy.resilience, policy.classes, proxies.by_role
    ready = ready_capacity(pool, engines, traffic)
    total, how = total_ceiling(resilience.limits, pool, ready, before)
    in_force = not resilience.shadowed(resilience.limits.mode)
    shed_batch = degradation is not None and degradation.shed_batch
    percent, least = retry_budget(resilience, total, by_role, degradation, in_force=in_force)
    basis = (
        (resilience.limits, ready.by),
        (percent, least, tuple(sorted(by_role.items())), classes, shed_batch, in_force),
        tuple((key, one.since_s, one.cut, one.gone) for key, one in engines.decisions.items() if _is_ejected(one)),
    )
    if (
        before is not None
        and before.proxies is proxies.by_node
        and before.basis == basis
        and before.decided.total == total
        and now_s - before.divided_at_s < _DIVIDED_EACH_S
        and (before.traffic is traffic or _may_wait(before, traffic))
    ):
        capacities, utilization = engines.capacities, ready.utilization
        if before.decided.capacities is capacities and before.decided.utilization == utilization:
            return before
        return replace(before, decided=replace(before.decided, capacities=capacities, utilization=utilization))
    around = _sharers(engines, traffic=traffic, proxies=proxies, before=before, now_s=now_s)
    pressure = _pressure(around, ready)
    was_crowded = before is not None and before.decided.crowded
    crowded = pressure is not None and pressure >= (_CALM if was_crowded else 1.0)
    supply = Supply(
        total=total,
        hold_s=total / ready.per_s if ready.per_s else pool.service_time,
        service_s=ready.slots / ready.per_s if ready.per_s else pool.service_time,
        crowded=crowded,
    )
    of_class = class_limits(supply, around.demand, classes, resilience.limits.priorities, shed_batch=shed_batch)
    if shed_batch and not in_force and len(classes) > 1:
        of_class = of_class[0], 0.0  # no ceiling tells what interactive requests leave free
    known = before
    if (
        before is None
        or was_crowded != crowded
        or before.basis[1:2] != basis[1:2]
        or (before.basis != basis and abs(total - before.decided.total) >= ESTIMATE_STEP * before.decided.total)
    ):
        known = None
    if in_force:
        parts = damped_limits(
            proxy_limits(supply, of_class, around, classes),
            _kept_limits(known, around, same=known is not None and known.basis == basis),
            of_class,
            around,
            crowded=crowded,
            moved_at_s=known.moved_at_s if known is not None else {},
            now_s=now_s,
        )
    else:
        parts = dict.fromkeys((*around.gateways, *around.others), _unlimited(resilience, of_class[1]))
    held = sum(around.stuck.values())
    reason = _reason(total, how, ready, len(engines.engines), held, in_force=in_force)
    by_proxy, moved_at_s = _ceilings(parts, (percent, least), around, reason, before=before, now_s=now_s)
    decided = AdmissionDecision(
        total=total,
        interactive=round_up(of_class[0]),
        batch=round_up(of_class[1]),
        held=held,
        slots=ready.slots,
        wait_s=max(0.0, supply.hold_s - supply.service_s),
        pressure=pressure,
        utilization=ready.utilization,
        in_force=in_force,
        by_proxy=by_proxy,
        capacities=engines.capacities,
        reason=reason,
        retry_percent=percent,
        retry_min_concurrency=least,
        crowded=crowded,
    )
    return AdmissionMemory(
        decided=decided,
        demand=around.demand,
        reporting_gateways=_reporting_gateways(around, before),
        moved_at_s=moved_at_s,
        stuck_by_proxy=around.stuck,
        basis=basis,
        traffic=traffic,
        proxies=proxies.by_node,
        divided_at_s=now_s,
        idle_limit=idle_sidecar_limit(
            supply, of_class, around, classes, known.idle_limit if known is not None else None
        ),
    )


def _may_wait(before: AdmissionMemory, traffic: PoolTraffic | None) -> bool:
    """Whether traffic that is new may wait to be divided by: there is room for all, and nobody is refused."""
    if traffic is None or before.decided.crowded or len(before.demand) < _MANY:
        return False
    return all(not (one.shed_per_s and any(one.shed_per_s.values())) for one in traffic.proxies.values())


def _is_ejected(decision: EngineDecision) -> bool:
    return decision.health is not Health.HEALTHY


def ceiling_for_role(
    memory: AdmissionMemory, resilience: ResilienceSpec, role: str, proxies_by_role: Mapping[str, int]
) -> Ceiling:
    """The ceiling of a proxy of ``role`` that has no part of its own yet: as one that asks for nothing has."""
    admission = memory.decided
    if not admission.in_force:
        wide = _unlimited(resilience, admission.batch)
        interactive, batch = wide.interactive, wide.batch
    elif role != GATEWAY:
        interactive, batch = memory.idle_limit
    else:
        gateways = max(1, proxies_by_role.get(GATEWAY, 0))
        sidecars = sum(proxies_by_role.values()) - proxies_by_role.get(GATEWAY, 0)
        interactive, batch = (
            round_up(even_share(of_class, gateways, sidecars=sidecars > 0 and bool(memory.demand)))
            if of_class
            else 0
            for of_class in (admission.interactive, admission.batch)
        )
    return Ceiling(
        interactive=interactive,
        batch=batch,
        retry_percent=admission.retry_percent,
        retry_min_concurrency=admission.retry_min_concurrency,
        reason=f"{admission.reason}; an even part until it has asked for something",
    )


def _sharers(
    engines: PoolEngines,
    *,
    traffic: PoolTraffic | None,
    proxies: ConnectedProxies,
    before: AdmissionMemory | None,
    now_s: float,
) -> Sharers:
    """The proxies that share the pool, the demand of each, and what each holds on ejected engines."""
    name = engines.engines[0].id.pool if engines.engines else ""
    serving = {node: one for node, one in proxies.by_node.items() if not one.pools or name in one.pools}
    gateways = tuple(node for node, one in serving.items() if one.role == GATEWAY)
    remembered = proxies.by_role.get(GATEWAY, 0)
    gateway_count = max(len(gateways), remembered)
    demand = smoothed_demand(serving, traffic, before.demand if before is not None else {}, now_s)
    told = before.reporting_gateways if before is not None else frozenset()
    held = stuck_by_proxy(
        serving,
        engines,
        traffic=traffic,
        gateways=frozenset(gateways),
        sharers=gateway_count,
        now_s=now_s,
    )
    return Sharers(
        gateways=gateways,
        others=tuple(node for node in {**demand, **held} if serving[node].role != GATEWAY),
        gateway_count=gateway_count,
        other_count=max(len(serving) - len(gateways), sum(proxies.by_role.values()) - remembered),
        demand=demand,
        silent_gateways=sum(node not in demand and node not in told for node in gateways),
        stuck=held,
        in_flight=in_flight_by_proxy(demand, traffic, held, now_s),
    )


def _reporting_gateways(around: Sharers, before: AdmissionMemory | None) -> frozenset[str]:
    """The gateways that have told their demand since they connected."""
    told = before.reporting_gateways if before is not None else frozenset()
    now = frozenset(node for node in around.gateways if node in around.demand or node in told)
    return reuse_equal(told, now)


def _kept_limits(before: AdmissionMemory | None, around: Sharers, *, same: bool) -> dict[str, ProxyLimit]:
    """The places that may stay. Those of gateways not where engines came or went, or hold another number.

    Sidecars are too many for that: what comes in trifles is taken in by their parts when it has added up.
    """
    if before is None:
        return {}
    known = {
        node: ProxyLimit(interactive=one.interactive, batch=one.batch)
        for node, one in before.decided.by_proxy.items()
    }
    for node in around.gateways:
        if not same or before.stuck_by_proxy.get(node, 0) != around.stuck.get(node, 0):
            known.pop(node, None)
    return known


def _unlimited(resilience: ResilienceSpec, batch: float) -> ProxyLimit:
    """As good as no ceiling, except that the ladder may refuse batch requests all the same."""
    wide = resilience.limits.max_connections
    return ProxyLimit(interactive=wide, batch=wide if batch else 0)


def _pressure(around: Sharers, ready: ReadyCapacity) -> float | None:
    """What is asked over what can be served; a gateway whose telemetry was lost asks as the others do."""
    if not around.demand or not ready.per_s:
        return None
    asked_per_s = math.fsum(one.per_s for one in around.demand.values())
    telling = sum(node in around.demand for node in around.gateways)
    lost = len(around.gateways) - telling - around.silent_gateways
    return asked_per_s * (1 + lost / telling if telling else 1) / ready.per_s


def _reason(total: int, how: str, ready: ReadyCapacity, engines: int, held: int, *, in_force: bool) -> str:
    reason = f"{total} in flight = {how}, {ready.count} of {engines} engines in"
    if held:
        reason += f"; {held} more {'is' if held == 1 else 'are'} held by engines that are out"
    return reason if in_force else f"not in force; it would be {reason}"


def _ceilings(
    parts: Mapping[str, ProxyLimit],
    retries: tuple[float, int],
    around: Sharers,
    reason: str,
    *,
    before: AdmissionMemory | None,
    now_s: float,
) -> tuple[Mapping[str, Ceiling], Mapping[str, float]]:
    """A ceiling for each part, the same as before where its numbers are, and when each part last moved."""
    known: Mapping[str, Ceiling] = before.decided.by_proxy if before is not None else {}
    since_s: Mapping[str, float] = before.moved_at_s if before is not None else {}
    whole_per_s = math.fsum(one.per_s for one in around.demand.values())
    found, moved_at_s = {}, {}
    for node, part in parts.items():
        last = known.get(node)
        if (
            last is not None
            and part.interactive == last.interactive
            and part.batch == last.batch
            and last.retry_percent == retries[0]
            and last.retry_min_concurrency == retries[1]
        ):
            found[node], moved_at_s[node] = last, since_s.get(node, now_s)
            continue
        demand, held = around.demand.get(node), around.stuck.get(node, 0)
        share = (
            "an even part" if demand is None else f"its part by {demand.per_s:.3g} of {whole_per_s:.3g} requests/s"
        )
        stuck = f", and {held} that engines hold that are out" if held else ""
        found[node] = Ceiling(
            interactive=part.interactive,
            batch=part.batch,
            retry_percent=retries[0],
            retry_min_concurrency=retries[1],
            reason=f"{reason}; {share}{stuck}",
        )
        moved_at_s[node] = now_s
    if reuse_mapping(known, found) is known:
        return known, since_s
    return MappingProxyType(found), MappingProxyType(moved_at_s)
