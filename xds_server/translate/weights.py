"""Where each route's requests go now: declared weights, moved off pools that have no engine left.

No Envoy mechanism fails over on its own when a pool is full or gone and also keeps what is in flight, so the
control plane moves weights, by RTDS, in milliseconds.
"""

from collections.abc import Mapping

from policies.route import ModelRoute
from xds_server.decide.decisions import Decisions, Health
from xds_server.fleet import Fleet
from xds_server.translate.routes import declared_weights


def ready_pools(fleet: Fleet, decisions: Decisions) -> frozenset[str]:
    """Pools with an engine that takes new requests; an engine nothing was decided of counts as one."""
    return frozenset(
        pool
        for pool, engines in fleet.pools.items()
        if any(
            (decision := decisions.engines.get(engine.id)) is None or decision.health is Health.HEALTHY
            for engine in engines
        )
    )


def live_weights(route: ModelRoute, ready: frozenset[str]) -> Mapping[str, int]:
    """Weight of each pool of a route now.

    The weight of a pool without a ready engine moves to the fallback; without a ready fallback the other pools of
    the route share it by their own weights. With nothing ready the weights stay as declared.
    """
    declared = declared_weights(route)
    fallback = route.spec.fallback
    lost = sum(weight for pool, weight in declared.items() if pool not in ready)
    live = {pool: weight if pool in ready else 0 for pool, weight in declared.items()}
    if fallback is not None and fallback in ready:
        live[fallback] += lost
    return live if any(live.values()) else declared
