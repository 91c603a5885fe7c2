"""Engines that were removed from the policies and may still be answering earlier requests.

Where proxies reach engines through internal listeners, removing a listener ends its requests. A removed engine
keeps its listener for the pool's drain deadline.
"""

from policies.model import PolicySet
from xds_server.decide.decision_memory import DecisionMemory
from xds_server.model.fleet import EngineId, Fleet


def removed_engines(
    policies: PolicySet, fleet: Fleet, before: DecisionMemory, now_s: float
) -> dict[EngineId, float]:
    """Engine -> monotonic time until which its requests may continue.

    Excludes cut engines, engines that are declared again, and removed pools.
    """
    known = {key: until_s for key, until_s in before.leaving.items() if now_s < until_s}
    for name, pool in before.pools.items():
        resilience = policies.effective.get(name)
        if resilience is None or _same_engines(name, fleet, before):
            continue
        for key, decision in pool.decided.engines.items():
            if not decision.cut and fleet.engine(key) is None:
                known.setdefault(key, now_s + resilience.drain.deadline)
    return {
        key: until_s for key, until_s in known.items() if key.pool in policies.pools and fleet.engine(key) is None
    }


def _same_engines(name: str, fleet: Fleet, before: DecisionMemory) -> bool:
    """Whether the pool was declared with the same engines in the last round."""
    places = fleet.places.get(name)
    return places is not None and before.places.get(name) is places
