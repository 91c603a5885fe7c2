"""Engines that are no longer declared, and may still be answering what they were sent before.

Where proxies reach engines through listeners of their own, the end of a listener is the end of what goes through
it. An engine that an edit takes out of its pool keeps its listener as long as the pool's drain may take.
"""

from collections.abc import Mapping

from policies.model import PolicySet
from xds_server.decide.decisions import EngineDecision
from xds_server.model.fleet import EngineId, Fleet


def removed_engines(
    policies: PolicySet,
    fleet: Fleet,
    before: Mapping[EngineId, float],
    decided: Mapping[EngineId, EngineDecision],
    now_s: float,
) -> dict[EngineId, float]:
    """Engine -> monotonic time until which its requests may go on.

    ``before`` is what this returned last, ``decided`` what was decided of engines last. What was cut stays cut, an
    engine that is declared again no longer leaves, and of a pool that is gone nothing is kept.
    """
    known = {key: until_s for key, until_s in before.items() if now_s < until_s}
    for key, decision in decided.items():
        pool = policies.effective.get(key.pool)
        if pool is not None and not decision.cut and fleet.engine(key) is None:
            known.setdefault(key, now_s + pool.drain.deadline)
    return {
        key: until_s for key, until_s in known.items() if key.pool in policies.pools and fleet.engine(key) is None
    }
