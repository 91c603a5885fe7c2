"""How much may be in flight to a pool, and each proxy's part of it: the admission ceiling.

What the whole pool takes (``whole``) is divided by what proxies are asked for (``demand``, ``places``). Everything
above is refused at once, which costs nothing, instead of after a queue that costs the caller its deadline and the
engine work nobody waits for. Requests that are stuck on engines that are out (``held``) are added for the proxies
that hold them, or half an outage would become a whole.

Demand that drifts moves each part at most five times a second.

Where no proxy tells what arrives, gateways share evenly and each sidecar gets the whole: without knowing which of
a thousand will ask, a thousandth each would refuse almost everyone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from policies.route import PriorityClass
from xds_server.decide.admission.demand import demands
from xds_server.decide.admission.held import carried_by, held_by
from xds_server.decide.admission.places import (
    Around,
    Places,
    Supply,
    by_classes,
    even_part,
    places,
    quiet,
    settled,
    up,
)
from xds_server.decide.admission.whole import LEARNED_STEP, Ready, ready_engines, total_ceiling
from xds_server.decide.decisions import Admission, Capacity, Ceiling, EngineDecision, Health, LadderState
from xds_server.fleet import Engine, EngineId
from xds_server.fleet.traffic import PoolTraffic, Proxy

GATEWAY: Final = "gateway"
SIDECAR: Final = "sidecar"

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


def admission(
    pool: EnginePoolSpec,
    resilience: ResilienceSpec,
    engines: Sequence[Engine],
    decisions: Mapping[EngineId, EngineDecision],
    capacities: Mapping[EngineId, Capacity],
    *,
    traffic: PoolTraffic | None,
    classes: frozenset[PriorityClass],
    proxies: Mapping[str, Proxy],
    proxies_by_role: Mapping[str, int],
    ladder: LadderState | None,
    before: Admission | None,
    now_s: float,
) -> Admission:
    """What is let in of the pool's traffic now, and each connected proxy's part.

    Where no part has moved, ``by_proxy`` is the very same mapping as ``before``.
    """
    ready = ready_engines(pool, engines, decisions, capacities, traffic)
    total, how = total_ceiling(resilience.limits, pool, ready, before)
    in_force = not resilience.shadowed(resilience.limits.mode)
    shed_batch = ladder is not None and ladder.shed_batch
    percent, least = _retries(resilience, total, proxies_by_role, ladder, in_force=in_force)
    basis = (
        (resilience.limits, ready.by),
        (percent, least, tuple(sorted(proxies_by_role.items())), classes, shed_batch, in_force),
        tuple((key, one.since_s, one.cut, one.gone) for key, one in decisions.items() if _out(one)),
    )
    if (
        before is not None
        and before.among is proxies
        and before.basis == basis
        and before.total == total
        and now_s - before.divided_at_s < _DIVIDED_EACH_S
        and (before.seen is traffic or _waits(before, traffic))
    ):
        utilization = ready.utilization
        if before.capacities is capacities and before.utilization == utilization:
            return before
        return replace(before, capacities=capacities, utilization=utilization)
    around = _around(
        engines,
        decisions,
        capacities,
        traffic=traffic,
        proxies=proxies,
        proxies_by_role=proxies_by_role,
        before=before,
        now_s=now_s,
    )
    pressure = _pressure(around, ready)
    crowded = pressure is not None and pressure >= (_CALM if before is not None and before.crowded else 1.0)
    supply = Supply(
        total=total,
        hold_s=total / ready.per_s if ready.per_s else pool.service_time,
        service_s=ready.slots / ready.per_s if ready.per_s else pool.service_time,
        crowded=crowded,
    )
    of_class = by_classes(supply, around.demand, classes, resilience.limits.priorities, shed_batch=shed_batch)
    if shed_batch and not in_force and len(classes) > 1:
        of_class = of_class[0], 0.0  # no ceiling tells what interactive requests leave free
    known = before
    if (
        before is None
        or before.crowded != crowded
        or before.basis[1:2] != basis[1:2]
        or (before.basis != basis and abs(total - before.total) >= LEARNED_STEP * before.total)
    ):
        known = None
    if in_force:
        parts = settled(
            places(supply, of_class, around, classes),
            _unmoved(known, around, same=known is not None and known.basis == basis),
            of_class,
            around,
            crowded=crowded,
            moved_at_s=known.moved_at_s if known is not None else {},
            now_s=now_s,
        )
    else:
        parts = dict.fromkeys((*around.gateways, *around.others), _wide(resilience, of_class[1]))
    held = sum(around.held.values())
    reason = _reason(total, how, ready, len(engines), held, in_force=in_force)
    by_proxy, moved_at_s = _ceilings(parts, (percent, least), around, reason, before=before, now_s=now_s)
    return Admission(
        total=total,
        interactive=up(of_class[0]),
        batch=up(of_class[1]),
        held=held,
        slots=ready.slots,
        wait_s=max(0.0, supply.hold_s - supply.service_s),
        pressure=pressure,
        utilization=ready.utilization,
        in_force=in_force,
        by_proxy=by_proxy,
        capacities=capacities,
        reason=reason,
        retry_percent=percent,
        retry_min_concurrency=least,
        demand=around.demand,
        told=_told(around, before),
        moved_at_s=moved_at_s,
        held_by=around.held,
        crowded=crowded,
        basis=basis,
        seen=traffic,
        among=proxies,
        divided_at_s=now_s,
        quiet=quiet(supply, of_class, around, classes, known.quiet if known is not None else None),
    )


def _waits(before: Admission, traffic: PoolTraffic | None) -> bool:
    """Whether traffic that is new may wait to be divided by: there is room for all, and nobody is refused."""
    if traffic is None or before.crowded or len(before.demand) < _MANY:
        return False
    return all(not (one.shed_per_s and any(one.shed_per_s.values())) for one in traffic.proxies.values())


def _out(decision: EngineDecision) -> bool:
    return decision.health is not Health.HEALTHY


def ceiling_for_role(
    admission: Admission, resilience: ResilienceSpec, role: str, proxies_by_role: Mapping[str, int]
) -> Ceiling:
    """The ceiling of a proxy of ``role`` that has no part of its own yet: as one that asks for nothing has."""
    if not admission.in_force:
        wide = _wide(resilience, admission.batch)
        interactive, batch = wide.interactive, wide.batch
    elif role != GATEWAY:
        interactive, batch = admission.quiet
    else:
        gateways = max(1, proxies_by_role.get(GATEWAY, 0))
        sidecars = sum(proxies_by_role.values()) - proxies_by_role.get(GATEWAY, 0)
        interactive, batch = (
            up(even_part(of_class, gateways, sidecars=sidecars > 0 and bool(admission.demand))) if of_class else 0
            for of_class in (admission.interactive, admission.batch)
        )
    return Ceiling(
        interactive=interactive,
        batch=batch,
        retry_percent=admission.retry_percent,
        retry_min_concurrency=admission.retry_min_concurrency,
        reason=f"{admission.reason}; an even part until it has asked for something",
    )


def _around(
    engines: Sequence[Engine],
    decisions: Mapping[EngineId, EngineDecision],
    capacities: Mapping[EngineId, Capacity],
    *,
    traffic: PoolTraffic | None,
    proxies: Mapping[str, Proxy],
    proxies_by_role: Mapping[str, int],
    before: Admission | None,
    now_s: float,
) -> Around:
    """Who shares the pool, what each asks, and what each holds on engines that are out."""
    name = engines[0].id.pool if engines else ""
    serving = {node: one for node, one in proxies.items() if not one.pools or name in one.pools}
    gateways = tuple(node for node, one in serving.items() if one.role == GATEWAY)
    remembered = proxies_by_role.get(GATEWAY, 0)
    gateway_count = max(len(gateways), remembered)
    demand = demands(serving, traffic, before.demand if before is not None else {}, now_s)
    told = before.told if before is not None else frozenset()
    held = held_by(
        serving,
        engines,
        decisions,
        capacities,
        traffic=traffic,
        gateways=frozenset(gateways),
        sharers=gateway_count,
        now_s=now_s,
    )
    return Around(
        gateways=gateways,
        others=tuple(node for node in {**demand, **held} if serving[node].role != GATEWAY),
        gateway_count=gateway_count,
        other_count=max(len(serving) - len(gateways), sum(proxies_by_role.values()) - remembered),
        demand=demand,
        strangers=sum(node not in demand and node not in told for node in gateways),
        held=held,
        carried=carried_by(demand, traffic, held, now_s),
    )


def _told(around: Around, before: Admission | None) -> frozenset[str]:
    """The gateways that have told their demand since they connected."""
    told = before.told if before is not None else frozenset()
    now = frozenset(node for node in around.gateways if node in around.demand or node in told)
    return told if now == told else now


def _unmoved(before: Admission | None, around: Around, *, same: bool) -> dict[str, Places]:
    """The places that may stay. Those of gateways not where engines came or went, or hold another number.

    Sidecars are too many for that: what comes in trifles is taken in by their parts when it has added up.
    """
    if before is None:
        return {}
    known = {node: Places(interactive=one.interactive, batch=one.batch) for node, one in before.by_proxy.items()}
    for node in around.gateways:
        if not same or before.held_by.get(node, 0) != around.held.get(node, 0):
            known.pop(node, None)
    return known


def _retries(
    resilience: ResilienceSpec,
    total: int,
    proxies_by_role: Mapping[str, int],
    ladder: LadderState | None,
    *,
    in_force: bool,
) -> tuple[float, int]:
    """One proxy's part of the retry budget: percentage, and how many are always allowed.

    A percentage of what each proxy has in flight adds up to the same percentage of the fleet; the number is
    divided, to one at least unless the fleet has none. A derived budget under a ceiling is as wide as the ceiling:
    what is cut off a hung engine is tried again all at once, when hardly anything else may be in flight, and each
    of those retries has to find a place under the ceiling anyway. Not where requests are hedged: Envoy has one
    budget for both.
    """
    budget = resilience.retry_budget
    percent = budget.percent_under_ceiling if in_force else budget.percent_without_ceiling
    if ladder is not None and ladder.retries_minimum:
        percent = 0.0
    elif in_force and budget.percent is None and not resilience.hedging.enabled:
        # The next power of two, for it is in the layer of every proxy, and the ceiling is the one that binds.
        return percent, 1 << (max(total, budget.min_concurrency) - 1).bit_length()
    whole = budget.min_concurrency
    return percent, max(1, whole // max(1, sum(proxies_by_role.values()))) if whole else 0


def _wide(resilience: ResilienceSpec, batch: float) -> Places:
    """As good as no ceiling, except that the ladder may refuse batch requests all the same."""
    wide = resilience.limits.max_connections
    return Places(interactive=wide, batch=wide if batch else 0)


def _pressure(around: Around, ready: Ready) -> float | None:
    """What is asked over what can be served; a gateway whose telemetry was lost asks as the others do."""
    if not around.demand or not ready.per_s:
        return None
    asked_per_s = math.fsum(one.per_s for one in around.demand.values())
    telling = sum(node in around.demand for node in around.gateways)
    lost = len(around.gateways) - telling - around.strangers
    return asked_per_s * (1 + lost / telling if telling else 1) / ready.per_s


def _reason(total: int, how: str, ready: Ready, engines: int, held: int, *, in_force: bool) -> str:
    reason = f"{total} in flight = {how}, {ready.count} of {engines} engines in"
    if held:
        reason += f"; {held} more {'is' if held == 1 else 'are'} held by engines that are out"
    return reason if in_force else f"not in force; it would be {reason}"


def _ceilings(
    parts: Mapping[str, Places],
    retries: tuple[float, int],
    around: Around,
    reason: str,
    *,
    before: Admission | None,
    now_s: float,
) -> tuple[Mapping[str, Ceiling], Mapping[str, float]]:
    """A ceiling for each part, the same as before where its numbers are, and when each part last moved."""
    known: Mapping[str, Ceiling] = before.by_proxy if before is not None else {}
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
        demand, held = around.demand.get(node), around.held.get(node, 0)
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
    if len(found) == len(known) and all(known.get(node) is one for node, one in found.items()):
        return known, since_s
    return MappingProxyType(found), MappingProxyType(moved_at_s)
