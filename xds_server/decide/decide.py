"""From policies, fleet and time to decisions: the one function the rest of the control plane calls.

Pools do not depend on each other, so a pool whose engines, policies and proxies are the same objects as last time
keeps its decisions until age would change one. That is memory of work done, and changes no answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from policies.route import PriorityClass
from xds_server.decide.capacity import capacities
from xds_server.decide.ceiling import GATEWAY, SIDECAR, admission, ceiling_for_role, classes_by_pool
from xds_server.decide.decisions import Decisions, EngineDecision, PoolDecisions, ZoneShares
from xds_server.decide.engines import engine_decisions
from xds_server.decide.zones import MIN_INTERVAL_S, zone_shares
from xds_server.fleet import Engine, EngineId, Fleet

_ROLES: Final = frozenset({GATEWAY, SIDECAR})
_NO_ZONES: Final[Mapping[str, ZoneShares]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """What all pools share: who asks, from where, and when."""

    proxies_by_role: Mapping[str, int]
    calling_zones: frozenset[str]
    now_s: float


def decide(
    policies: PolicySet,
    fleet: Fleet,
    previous: Decisions | None,
    *,
    proxies_by_role: Mapping[str, int],
    calling_zones: frozenset[str],
    now_s: float,
) -> Decisions:
    """Health of each engine, zone weights for each calling zone, and ceilings for each role of proxy.

    ``previous`` is what was decided last, None at start; ``now_s`` the monotonic clock of the fleet's reports.
    """
    around = _Around(proxies_by_role=proxies_by_role, calling_zones=calling_zones, now_s=now_s)
    classes = classes_by_pool(policies)
    pools = {
        name: _pool(
            policies.pools[name].spec,
            policies.effective[name],
            engines,
            classes=classes.get(name, frozenset()),
            around=around,
            before=previous.pools.get(name) if previous is not None else None,
        )
        for name, engines in fleet.pools.items()
        if name in policies.pools
    }
    engines: dict[EngineId, EngineDecision] = {}
    for pool in pools.values():
        engines.update(pool.engines)
    return Decisions(
        engines=MappingProxyType(engines),
        zone_weights=MappingProxyType(
            {(name, zone): shares.weights for name, pool in pools.items() for zone, shares in pool.zones.items()}
        ),
        ceilings=MappingProxyType(
            {(name, role): limit for name, pool in pools.items() for role, limit in pool.ceilings.items()}
        ),
        pools=MappingProxyType(pools),
    )


def _pool(
    pool: EnginePoolSpec,
    resilience: ResilienceSpec,
    engines: tuple[Engine, ...],
    *,
    classes: frozenset[PriorityClass],
    around: _Around,
    before: PoolDecisions | None,
) -> PoolDecisions:
    """The decisions for one pool."""
    made_of = (tuple(sorted(around.proxies_by_role.items())), around.calling_zones, classes)
    if (
        before is not None
        and around.now_s < before.valid_until_s
        and before.declared is engines
        and before.made_of[0] is pool
        and before.made_of[1] is resilience
        and before.made_of[2:] == made_of
    ):
        return before
    outcome = engine_decisions(pool, resilience, engines, None, overrides={}, before=before, now_s=around.now_s)
    decided = outcome.engines
    zones = zone_shares(
        engines,
        decided,
        resilience.zones,
        callers=around.calling_zones,
        previous=_NO_ZONES if before is None else before.zones,
        now_s=around.now_s,
    )
    known = before.admission if before is not None else None
    capacity = capacities(
        pool,
        resilience,
        engines,
        None,
        decisions=decided,
        before=known.capacities if known is not None else {},
        now_s=around.now_s,
    )
    admitted = admission(
        pool,
        resilience,
        engines,
        decided,
        capacity,
        traffic=None,
        classes=classes,
        proxies={},
        proxies_by_role=around.proxies_by_role,
        ladder=None,
        before=known,
        now_s=around.now_s,
    )
    return PoolDecisions(
        engines=decided,
        zones=zones,
        ceilings={
            role: ceiling_for_role(admitted, resilience, role, around.proxies_by_role)
            for role in sorted(_ROLES.union(around.proxies_by_role))
        },
        admission=admitted,
        declared=engines,
        made_of=(pool, resilience, *made_of),
        breakers=outcome.breakers,
        stragglers=outcome.stragglers,
        comebacks=outcome.comebacks,
        valid_until_s=_valid_until_s([outcome.until_s], zones, around.now_s),
    )


def _valid_until_s(ages_s: list[float], zones: Mapping[str, ZoneShares], now_s: float) -> float:
    """When time alone may change a decision: a report grows old, or held-back weights are due."""
    due_s = [shares.since_s + MIN_INTERVAL_S for shares in zones.values()]
    return min((moment for moment in (*ages_s, *due_s) if moment > now_s), default=float("inf"))
