"""Statistics of pools, zones, engines and proxies: the tables of ``switchgear get``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from policies.model import PolicySet
from xds_server.admin.views.context import ViewContext
from xds_server.admin_api.status_types import (
    AdapterStatus,
    EngineStatus,
    OrderStatus,
    PoolStatus,
    ProxyPoolStatus,
    RegionStatus,
    ShadowEngineStatus,
    ShadowPoolStatus,
    ShadowStatus,
    ZoneStatus,
)
from xds_server.decide.decisions import Health, PoolDecisions
from xds_server.ledger.shadow import ShadowTotals
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.order import Order, OrderAction
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic, ProxyTraffic
from xds_server.translate.affinity import slack_by_pool
from xds_server.translate.engine_selection import EngineSelection, adapters_by_pool
from xds_server.translate.key_shares import keys_away


def pool_rows(scene: ViewContext) -> Sequence[PoolStatus]:
    """One row per pool with decisions."""
    backed, keyed = _with_fallback(scene.policies), slack_by_pool(scene.policies.routes)
    routed = adapters_by_pool(scene.policies)
    return [
        replace(
            _pool(name, pool, scene),
            fallback=name in backed,
            keys_away_percent=_keys_away_percent(pool) if name in keyed else None,
            adapters=_adapters(name, pool, routed.get(name, ()), scene),
        )
        for name, pool in scene.decisions.pools.items()
    ]


def _keys_away_percent(pool: PoolDecisions) -> float:
    return round(sum(keys_away(pool.declared, pool).values()), 1)


def _adapters(
    name: str, pool: PoolDecisions, routed: Sequence[EngineSelection], scene: ViewContext
) -> tuple[AdapterStatus, ...]:
    """The adapters that routes ask this pool for or that it loads, and how many engines in rotation have each."""
    inside = [
        engine
        for engine in scene.fleet.pools.get(name, ())
        if engine.id in pool.engines and pool.engines[engine.id].health is Health.HEALTHY
    ]
    listed = [None if engine.report is None else engine.report.adapters for engine in inside]
    first = {
        route.spec.adapter_name
        for route in scene.policies.routes.values()
        if any(share.pool == name for share in route.spec.pools)
    }
    loaded = {one.name: one for one in scene.policies.pools[name].spec.adapters}
    return tuple(
        AdapterStatus(
            adapter=adapter,
            engines=sum(names is not None and adapter in names for names in listed),
            unknown=sum(names is None for names in listed),
            routed=adapter in first,
            wanted=min(loaded[adapter].engines or len(pool.engines), len(pool.engines))
            if adapter in loaded
            else None,
            trouble=scene.adapter_troubles.get((name, adapter), ""),
        )
        for adapter in sorted({one.adapter for one in routed} | set(loaded))
    )


def _with_fallback(policies: PolicySet) -> frozenset[str]:
    """Pools for which another one may take over."""
    found: set[str] = set()
    for route in policies.routes.values():
        if fallbacks := route.spec.fallbacks:
            found.update(share.pool for share in route.spec.pools)
            found.update(fallbacks[:-1])
    return frozenset(found)


def _pool(name: str, pool: PoolDecisions, scene: ViewContext) -> PoolStatus:
    traffic, admission = scene.fleet.traffic.get(name), pool.admission
    resilience = scene.policies.effective[name]
    parts = {
        "breaker": resilience.breaker.mode,
        "straggler": resilience.straggler.mode,
        "limits": resilience.limits.mode,
        "hedging": resilience.hedging.mode,
        "zones": resilience.zones.mode,
        "regions": resilience.regions.mode,
        "degradation": resilience.degradation.mode,
    }
    gateway = pool.ceilings.get("gateway")
    ceiling = gateway.interactive + gateway.batch if gateway is not None else None
    reason = "" if gateway is None else f"per gateway: {gateway.reason}"
    if admission is not None:
        ceiling, reason = admission.total + admission.held, admission.reason
    return PoolStatus(
        pool=name,
        model=scene.policies.pools[name].spec.model,
        stage=scene.policies.pools[name].spec.stage or "",
        engines=len(pool.engines),
        healthy=sum(one.health is Health.HEALTHY for one in pool.engines.values()),
        kept_in=sum(one.floor for one in pool.engines.values()),
        level=0 if pool.degradation is None else pool.degradation.level,
        level_reason="" if pool.degradation is None else pool.degradation.reason,
        ceiling=ceiling,
        held=None if admission is None else admission.held,
        ceiling_reason=reason,
        slots=float(sum(engine.slots for engine in pool.declared)) if admission is None else admission.slots,
        in_flight=in_flight(traffic),
        arrivals_per_s=None if traffic is None else _sum(_arrivals(one) for one in traffic.proxies.values()),
        done_per_s=None if traffic is None else _sum(one.done_per_s for one in traffic.engines.values()),
        shed_per_s=_shed(traffic),
        retries_per_s=None if traffic is None else _sum(one.retries_per_s for one in traffic.proxies.values()),
        error_percent=_error_percent(traffic),
        pressure=None if admission is None or admission.pressure is None else round(admission.pressure, 3),
        utilization=None
        if admission is None or admission.utilization is None
        else round(admission.utilization, 3),
        hedging=None if pool.hedge is None else pool.hedge.on,
        hedge_delay_s=None if pool.hedge is None else pool.hedge.delay_s,
        answer_p99_s=None if traffic is None or traffic.answer is None else traffic.answer.p99_s,
        first_byte_p99_s=None if traffic is None or traffic.first_byte is None else traffic.first_byte.p99_s,
        telemetry_age_s=_age(scene.now.s, None if traffic is None else traffic.heard_at_s),
        prefilled_percent=None
        if traffic is None or traffic.prefill is None
        else round(100 * traffic.prefill.named_ratio, 1),
        shadow=tuple(part for part, mode in parts.items() if resilience.shadowed(mode)),
        revisions=_revisions(pool),
        regions=tuple(
            RegionStatus(
                region=region,
                home=one.home,
                sends_percent={to: round(100 * share, 1) for to, share in one.shares.items()},
                barred=len(one.excluded),
                reason=one.reason,
                age_s=round(scene.now.s - one.since_s, 3),
                in_force=one.in_force,
            )
            for region, one in pool.regions.items()
        ),
    )


def _revisions(pool: PoolDecisions) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for engine in pool.declared:
        of_region = found.setdefault(engine.region, {})
        of_region[engine.revision] = of_region.get(engine.revision, 0) + 1
    return {region: dict(sorted(counts.items())) for region, counts in sorted(found.items())}


def zone_rows(
    scene: ViewContext, flows: Mapping[str, Mapping[tuple[str, str], float]] = MappingProxyType({})
) -> Sequence[ZoneStatus]:
    """One row per pool and zone with engines or callers; ``flows``: calls/s by pool, from zone to zone."""
    rows: list[ZoneStatus] = []
    for name, pool in scene.decisions.pools.items():
        calls: dict[str, dict[str, float]] = {}
        for (here, to), rate in sorted(flows.get(name, {}).items()):
            calls.setdefault(here, {})[to] = round(rate, 3)
        by_zone: dict[str, list[Engine]] = {zone: [] for zone in (*pool.zones, *calls)}
        for engine in pool.declared:
            by_zone.setdefault(engine.zone, []).append(engine)
        rows.extend(
            replace(_zone(name, zone, engines, pool, scene), calls_per_s=calls.get(zone, {}))
            for zone, engines in sorted(by_zone.items())
        )
    return rows


def _zone(name: str, zone: str, engines: Sequence[Engine], pool: PoolDecisions, scene: ViewContext) -> ZoneStatus:
    shares, traffic = pool.zones.get(zone), scene.fleet.traffic.get(name)
    whole = 0 if shares is None else sum(shares.weights.values())
    reports = [_of(traffic, engine) for engine in engines]
    counts = [one.in_flight for one in reports if one is not None and one.in_flight is not None]
    return ZoneStatus(
        pool=name,
        zone=zone,
        engines=len(engines),
        healthy=sum(one.id in pool.engines and pool.engines[one.id].health is Health.HEALTHY for one in engines),
        slots=sum(one.slots for one in engines),
        in_flight=sum(counts) if counts else None,
        sends_percent={}
        if shares is None or not whole
        else {to: round(100 * one / whole, 1) for to, one in sorted(shares.weights.items())},
        reason="" if shares is None else shares.reason,
        age_s=None if shares is None else _age(scene.now.s, shares.since_s),
    )


def proxy_rows(node: str, scene: ViewContext) -> tuple[ProxyPoolStatus, ...]:
    """One row per pool that this proxy reports."""
    rows = []
    for name, traffic in scene.fleet.traffic.items():
        proxy = traffic.proxies.get(node)
        if proxy is None:
            continue
        pool = scene.decisions.pools.get(name)
        admission = None if pool is None else pool.admission
        part = None if admission is None else admission.by_proxy.get(node)
        rows.append(
            ProxyPoolStatus(
                pool=name,
                arrivals_per_s=round(_arrivals(proxy), 3),
                shed_per_s=round(sum(proxy.shed_per_s.values()), 3),
                retries_per_s=round(proxy.retries_per_s, 3),
                in_flight=sum(proxy.in_flight_on.values()),
                ceiling_interactive=None if part is None else part.interactive,
                ceiling_batch=None if part is None else part.batch,
                telemetry_age_s=_telemetry_age_s(proxy, scene.now.s),
                shuns=tuple(sorted(engine for engine, missed in proxy.silent.items() if missed)),
            )
        )
    return tuple(rows)


def silent_proxies(scene: ViewContext) -> Iterator[str]:
    """Nodes with a pool that they report no traffic of; a node may come more than once."""
    for traffic in scene.fleet.traffic.values():
        for node, proxy in traffic.proxies.items():
            if _telemetry_age_s(proxy, scene.now.s) is None:
                yield node


def _telemetry_age_s(proxy: ProxyTraffic, now_s: float) -> float | None:
    return _age(now_s, max(proxy.heard_at_s, proxy.load_at_s or 0.0))


def order_rows(orders: Mapping[EngineId, Order], now_s: float) -> Sequence[OrderStatus]:
    """One row per order in force, the first to end first."""
    return [
        OrderStatus(
            pool=key.pool,
            engine=key.engine,
            action=order.action.value,
            reason=order.reason,
            by=order.by,
            force=order.force,
            given_at_unix_s=round(order.given_at_unix_s, 3),
            left_s=round(order.until_s - now_s, 3),
            level=order.level if order.action is OrderAction.DEGRADE else None,
        )
        for key, order in sorted(orders.items(), key=lambda one: one[1].until_s)
    ]


def shadow_report(book: ShadowTotals) -> ShadowStatus:
    """Shadow-mode results since the server started; engines with most failures first."""
    tallies = sorted(book.engines.values(), key=lambda one: (-one.failed, -one.out_s, one.engine))
    return ShadowStatus(
        engines=tuple(
            ShadowEngineStatus(
                pool=one.engine.pool,
                engine=one.engine.engine,
                reason=one.reason,
                times=one.times,
                out_s=round(one.out_s, 3),
                failed=one.failed,
                succeeded=one.succeeded,
                capacity_percent=round(one.capacity_percent, 1),
                out_now=one.out_now,
            )
            for one in tallies
        ),
        pools=tuple(
            ShadowPoolStatus(
                pool=one.pool, reason=one.reason, over_s=round(one.over_s, 3), refused=round(one.refused, 1)
            )
            for one in book.ceilings.values()
        ),
    )


def with_decision_status(engine: EngineStatus, key: EngineId, scene: ViewContext | None) -> EngineStatus:
    """Engine status with its decision and the calls that proxies report."""
    known = None if scene is None else scene.fleet.engine(key)
    decision = None if scene is None else scene.decisions.engines.get(key)
    if scene is None or known is None or decision is None:
        return engine
    pool, order = scene.decisions.pools[key.pool], scene.orders.get(key)
    traffic = _of(scene.fleet.traffic.get(key.pool), known)
    capacity = None if pool.admission is None else pool.admission.capacities.get(key)
    shadow, ramp = decision.shadow, pool.ramps.get(key)
    return replace(
        engine,
        ejector=None if decision.ejector is None else decision.ejector.value,
        floor=decision.floor,
        traffic_percent=decision.traffic_percent,
        slow_start_percent=100.0 if ramp is None else ramp.percent,
        slow_start_left_s=0.0 if ramp is None else round(max(0.0, ramp.full_at_s - scene.now.s), 3),
        keys_held_s=0.0
        if ramp is None or ramp.held_until_s is None
        else round(max(0.0, ramp.held_until_s - scene.now.s), 3),
        cut=decision.cut,
        returns=decision.returns,
        until_in_s=None if decision.until_s is None else round(max(0.0, decision.until_s - scene.now.s), 3),
        shadow=None if shadow is None else shadow.health.value,
        shadow_reason="" if shadow is None else shadow.reason,
        order=None if order is None else order.action.value,
        in_flight=None if traffic is None else traffic.in_flight,
        error_percent=error_percent(traffic),
        window_calls=None if traffic is None else traffic.window_calls,
        done_per_s=None if traffic is None else round(traffic.done_per_s, 3),
        service_s=None if traffic is None or traffic.service_s is None else round(traffic.service_s, 3),
        slots=float(known.slots) if capacity is None else capacity.slots,
        shunned_by=shunned_by(key, scene),
    )


def shunned_by(key: EngineId, scene: ViewContext) -> tuple[str, ...]:
    """Proxies that send this engine no requests although its peers get some."""
    traffic = scene.fleet.traffic.get(key.pool)
    if traffic is None:
        return ()
    return tuple(sorted(node for node, proxy in traffic.proxies.items() if proxy.silent.get(key.engine)))


def error_percent(traffic: EngineTraffic | None) -> float | None:
    """Failed calls in the window, percent; None without calls."""
    if traffic is None or not traffic.window_calls:
        return None
    return round(100 * traffic.window_failures / traffic.window_calls, 1)


def in_flight(traffic: PoolTraffic | None) -> int | None:
    """Requests in flight on all engines of a pool; None if no proxy reports."""
    counts = [] if traffic is None else [one.in_flight for one in traffic.engines.values()]
    known = [one for one in counts if one is not None]
    return sum(known) if known else None


def _of(traffic: PoolTraffic | None, engine: Engine) -> EngineTraffic | None:
    return None if traffic is None else traffic.engines.get(engine.id.engine)


def _arrivals(proxy: ProxyTraffic) -> float:
    return sum(proxy.arrivals_per_s.values())


def _shed(traffic: PoolTraffic | None) -> Mapping[str, float]:
    shed: dict[str, float] = {}
    for proxy in () if traffic is None else traffic.proxies.values():
        for name, one in proxy.shed_per_s.items():
            shed[name.value] = round(shed.get(name.value, 0.0) + one, 3)
    return shed


def _error_percent(traffic: PoolTraffic | None) -> float | None:
    engines = [] if traffic is None else list(traffic.engines.values())
    calls = sum(one.window_calls for one in engines)
    return round(100 * sum(one.window_failures for one in engines) / calls, 1) if calls else None


def _sum(values: Iterable[float]) -> float:
    return round(sum(values), 3)


def _age(now_s: float, at_s: float | None) -> float | None:
    return round(max(0.0, now_s - at_s), 3) if at_s else None
