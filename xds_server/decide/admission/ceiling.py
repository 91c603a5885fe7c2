"""The admission ceiling: requests in flight allowed to a pool, and each proxy's part.

``pool_limit`` gives the total, ``proxy_limits`` divides it by demand. Excess is refused at once, which costs
nothing; a queue would cost callers their deadline and engines work that no caller waits for. Requests stuck on
ejected engines (``stuck_requests``) are added for the proxies that hold them, or half an outage would become a
whole one.

Drifting demand moves each part at most five times a second.

Without telemetry gateways share evenly and each sidecar gets the whole: which of a thousand will send is unknown,
and a thousandth each would refuse almost every request.
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
from xds_server.decide.admission.requests_in_prefill import PrefillLoad, in_flight
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
"""Smoothing: after 0.5 s, 0.6 of the old value is left. With it, two proxies with demand 3:1, swapped during a
fault, shared without loss. Rates already cover two seconds."""

_LONGEST_LOOK_S: Final = 1.0
_TRIFLE: Final = 0.01


def smoothed_demand(
    nodes: Collection[str], traffic: PoolTraffic | None, before: Mapping[str, Demand], now_s: float
) -> dict[str, Demand]:
    """The smoothed demand at each of ``nodes`` with fresh telemetry."""
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
        # A long pause between two rounds must not cause a jump.
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
    # A proxy that refuses callers must not wait for an average to catch up.
    return max(smooth, seen) if sheds else smooth


def _same(seen: float, known: float) -> bool:
    return abs(seen - known) <= _TRIFLE * known


_DIVIDED_EACH_S: Final = 0.5
"""How often parts are divided again when only the age of the traffic changed. With many proxies this also applies
to new traffic, while all demand fits and no proxy refuses a caller."""

_MANY: Final = 50
"""Proxies reporting on a pool from which dividing its ceiling costs more than a round may."""

_CALM: Final = 0.9
"""Pressure below which a pool that was at capacity counts as calm again."""


def classes_by_pool(policies: PolicySet) -> Mapping[str, frozenset[PriorityClass]]:
    """The priority classes whose routes lead to each pool, as target or fallback."""
    classes: dict[str, set[PriorityClass]] = {}
    for route in policies.routes.values():
        for pool in (*(share.pool for share in route.spec.pools), *route.spec.fallbacks):
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
    prefill: PrefillLoad | None = None,
) -> AdmissionMemory:
    """How much of the pool's traffic is admitted now, and each connected proxy's part.

    If no part moved, ``by_proxy`` is the same mapping as in ``before``. ``prefill``: the pool's requests at
    prefill engines.
    """
    pool, resilience, classes, by_role = policy.spec, policy.resilience, policy.classes, proxies.by_role
    ready = ready_capacity(pool, engines, traffic)
    places = 0 if before is None else before.decided.prefill_places
    whole = total_ceiling(
        resilience.limits,
        pool,
        ready,
        before,
        prefill=prefill,
        whole=in_flight(traffic) if prefill or places else 0,
        now_s=now_s,
    )
    total, how = whole.total, whole.how
    in_force = not resilience.shadowed(resilience.limits.mode)
    shed_batch = degradation is not None and degradation.shed_batch
    was_crowded = before is not None and before.decided.crowded
    percent, least = retry_budget(resilience, total, by_role, degradation, in_force=in_force, crowded=was_crowded)
    gateways = by_role.get(GATEWAY, 0)
    has_others = sum(by_role.values()) > gateways
    basis = (
        (resilience.limits, ready.by),
        (percent, least, gateways, has_others, classes, shed_batch, in_force),
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
    around = _sharers(
        engines,
        room=(total, ready.slots),
        retried=resilience.retries.attempts > 0,
        traffic=traffic,
        proxies=proxies,
        before=before,
        now_s=now_s,
    )
    pressure = _pressure(around, ready)
    crowded = pressure is not None and pressure >= (_CALM if was_crowded else 1.0)
    supply = Supply(
        total=total,
        hold_s=total / ready.per_s if ready.per_s else pool.service_time,
        service_s=ready.slots / ready.per_s if ready.per_s else pool.service_time,
        crowded=crowded,
    )
    of_class = class_limits(supply, around.demand, classes, resilience.limits.priorities, shed_batch=shed_batch)
    if shed_batch and not in_force and len(classes) > 1:
        of_class = of_class[0], 0.0  # no ceiling shows what interactive requests leave free
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
        wait_s=max(0.0, supply.hold_s * (1 - whole.prefill_places / total) - supply.service_s),
        pressure=pressure,
        utilization=ready.utilization,
        in_force=in_force,
        by_proxy=by_proxy,
        capacities=engines.capacities,
        reason=reason,
        retry_percent=percent,
        retry_min_concurrency=least,
        crowded=crowded,
        prefill_places=whole.prefill_places,
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
        places_at_s=(-math.inf if before is None else before.places_at_s)
        if places == whole.prefill_places
        else now_s,
        idle_limit=idle_sidecar_limit(
            supply, of_class, around, classes, known.idle_limit if known is not None else None
        ),
    )


def _may_wait(before: AdmissionMemory, traffic: PoolTraffic | None) -> bool:
    """Whether dividing by new traffic may wait: all demand fits, and no proxy refuses a caller."""
    if traffic is None or before.decided.crowded or len(before.demand) < _MANY:
        return False
    return all(not (one.shed_per_s and any(one.shed_per_s.values())) for one in traffic.proxies.values())


def _is_ejected(decision: EngineDecision) -> bool:
    return decision.health is not Health.HEALTHY


def ceiling_for_role(
    memory: AdmissionMemory, resilience: ResilienceSpec, role: str, proxies_by_role: Mapping[str, int]
) -> Ceiling:
    """The ceiling of a proxy of ``role`` without its own part yet: that of one without demand."""
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
        reason=f"{admission.reason}; even part until it has demand",
    )


def _sharers(
    engines: PoolEngines,
    *,
    room: tuple[int, float],
    retried: bool,
    traffic: PoolTraffic | None,
    proxies: ConnectedProxies,
    before: AdmissionMemory | None,
    now_s: float,
) -> Sharers:
    """The proxies that share the pool, their demand, and what each holds on ejected engines above the ceiling.

    ``room``: ceiling and slots in rotation, between which failing requests come back if they are ``retried``.
    """
    name = engines.engines[0].id.pool if engines.engines else ""
    serving = proxies.by_node
    if any(pools for _, pools in proxies.kinds.counts):
        serving = {node: one for node, one in serving.items() if not one.pools or name in one.pools}
    gateways = tuple(node for node in proxies.kinds.gateways if node in serving)
    remembered = proxies.by_role.get(GATEWAY, 0)
    gateway_count = max(len(gateways), remembered)
    demand = smoothed_demand(serving, traffic, before.demand if before is not None else {}, now_s)
    told = before.reporting_gateways if before is not None else frozenset()
    held = stuck_by_proxy(
        serving,
        engines,
        traffic=traffic,
        per_slot=room[0] / room[1] if room[1] else 0.0,
        gateways=frozenset(gateways),
        sharers=gateway_count,
        now_s=now_s,
    )
    return Sharers(
        gateways=gateways,
        others=tuple(node for node in {**demand, **held.all} if serving[node].role != GATEWAY),
        gateway_count=gateway_count,
        other_count=max(len(serving) - len(gateways), sum(proxies.by_role.values()) - remembered),
        demand=demand,
        silent_gateways=sum(node not in demand and node not in told for node in gateways),
        stuck=held.above(*(room if retried else (0, 0.0))),
        in_flight=in_flight_by_proxy(demand, traffic, held.all, now_s),
    )


def _reporting_gateways(around: Sharers, before: AdmissionMemory | None) -> frozenset[str]:
    """The gateways that have reported their demand since they connected."""
    told = before.reporting_gateways if before is not None else frozenset()
    now = frozenset(node for node in around.gateways if node in around.demand or node in told)
    return reuse_equal(told, now)


def _kept_limits(before: AdmissionMemory | None, around: Sharers, *, same: bool) -> dict[str, ProxyLimit]:
    """The parts that may stay. Gateways keep none if engines or the number of their stuck requests changed.

    Sidecars are too many for that: their parts take in small changes once these add up.
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
    """Practically no ceiling, but degradation may still refuse batch requests."""
    wide = resilience.limits.max_connections
    return ProxyLimit(interactive=wide, batch=wide if batch else 0)


def _pressure(around: Sharers, ready: ReadyCapacity) -> float | None:
    """Demand over capacity; a gateway without telemetry is assumed to have mean demand."""
    if not around.demand or not ready.per_s:
        return None
    asked_per_s = math.fsum(one.per_s for one in around.demand.values())
    telling = sum(node in around.demand for node in around.gateways)
    lost = len(around.gateways) - telling - around.silent_gateways
    return asked_per_s * (1 + lost / telling if telling else 1) / ready.per_s


def _reason(total: int, how: str, ready: ReadyCapacity, engines: int, held: int, *, in_force: bool) -> str:
    reason = f"{total} in flight = {how}, {ready.count} of {engines} engines in rotation"
    if held:
        reason += f"; plus {held} held by ejected engines"
    return reason if in_force else f"not enforced; would be {reason}"


def _ceilings(
    parts: Mapping[str, ProxyLimit],
    retries: tuple[float, int],
    around: Sharers,
    reason: str,
    *,
    before: AdmissionMemory | None,
    now_s: float,
) -> tuple[Mapping[str, Ceiling], Mapping[str, float]]:
    """A ceiling for each part, the same object where its numbers are equal, and when each part last moved."""
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
            "even part"
            if demand is None
            else f"part by demand: {demand.per_s:.3g} of {whole_per_s:.3g} requests/s"
        )
        stuck = f", plus {held} held by ejected engines" if held else ""
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
