"""Engines that are no longer declared, and may still be answering what they were sent before.

Where proxies reach engines through listeners of their own, the end of a listener is the end of what goes through
it. An engine that an edit takes out of its pool keeps its listener as long as the pool's drain may take.
"""

from policies.model import PolicySet
from xds_server.decide.decision_memory import DecisionMemory
from xds_server.model.fleet import EngineId, Fleet


def removed_engines(
    policies: PolicySet, fleet: Fleet, before: DecisionMemory, now_s: float
) -> dict[EngineId, float]:
    """Engine -> monotonic time until which its requests may go on.

    A cut engine stays cut, an engine that is declared again no longer leaves, and a removed pool keeps nothing.
    """
    known = {key: until_s for key, until_s in before.leaving.items() if now_s < until_s}
    for name, pool in before.pools.items():
        resilience = policies.effective.get(name)
        if resilience is None:
            continue
        for key, decision in pool.decided.engines.items():
            if not decision.cut and fleet.engine(key) is None:
                known.setdefault(key, now_s + resilience.drain.deadline)
    return {
        key: until_s for key, until_s in known.items() if key.pool in policies.pools and fleet.engine(key) is None
    }
