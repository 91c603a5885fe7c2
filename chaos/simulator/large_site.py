"""What a large fleet is made of: its policies, what can go wrong with its engines, and who of them is out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from chaos.fake_engine.faults import Crash, ErrorAfterWork, Fault, Hang
from chaos.faults.pulls import BreakEngine, Kill, Part, Pull
from chaos.fitting.blueprint import planned
from chaos.fitting.subjects import PolicySubject
from chaos.scenario.plan import Experiment
from chaos.simulator.pulling import NotSimulatedError
from chaos.simulator.site import fitted
from chaos.simulator.steered import Translator
from engine.agent.config import AgentConfig
from engine.report import Verdict
from policies.model import PolicySet
from policies.pool import EnginePool
from xds_server.decide.decisions import Decisions
from xds_server.fleet import EngineId

_AGENT: Final = AgentConfig()


@dataclass(slots=True, kw_only=True, eq=False)
class Trouble:
    """What is wrong with one engine. ``told_s`` is when its agent says so, and what."""

    fault: Fault
    told_s: float
    verdict: Verdict


def fault_of(pull: Pull) -> Fault:
    if isinstance(pull, BreakEngine) and isinstance(pull.fault, Crash | ErrorAfterWork | Hang):
        return pull.fault
    if isinstance(pull, Kill) and pull.part is Part.ENGINE:
        return Crash()
    if isinstance(pull, Kill) and pull.part is Part.AGENT:
        return Crash()
    raise NotSimulatedError(f"a large fleet knows crashes, hangs and errors, and not {pull}; use simulate")


def told_of(fault: Fault, now_s: float) -> tuple[float, Verdict]:
    """When and how an agent speaks of it: a crash breaks its connection, a hang takes its patience and a look."""
    match fault:
        case Crash():
            return now_s, Verdict.DEAD
        case Hang():
            return now_s + _AGENT.stall_after_s, Verdict.HUNG
        case ErrorAfterWork(share=1.0):
            # Its agent's own questions fail as well.
            return now_s + _AGENT.unhealthy_after * _AGENT.interval_s, Verdict.DEGRADED
        case _:
            return math.inf, Verdict.READY


def large_policies(
    experiment: Experiment, subject: PolicySubject
) -> tuple[PolicySet, str, Experiment, Translator]:
    """The policies fitted to one engine, and then given all of them: ten thousand are no matter of text."""
    one = replace(experiment, engines=experiment.engines[:1], outages=())
    plan = planned(one, subject)
    assert plan.fitting is not None  # noqa: S101 -- it has policies
    small, _ = fitted(plan)
    pool = small.pools[plan.pool]
    spec = pool.spec.model_dump(by_alias=True, mode="json", exclude_unset=True)
    spec["endpoints"] = [
        {
            "name": spot.name,
            "address": f"10.{place >> 16}.{place >> 8 & 255}.{place & 255}",
            "port": 8000,
            "zone": spot.zone,
            "slots": spot.slots,
        }
        for place, spot in enumerate(experiment.engines)
    ]
    whole = EnginePool.model_validate({"metadata": {"name": plan.pool}, "spec": spec})
    policies = replace(small, pools=MappingProxyType({**small.pools, plan.pool: whole}))
    ratio = plan.experiment.service_s / experiment.service_s
    adapted = replace(experiment, service_s=plan.experiment.service_s, rate_per_s=experiment.rate_per_s / ratio)
    return policies, plan.pool, adapted, Translator(policies, plan.fitting.shape, plan.fitting.port)


def out_of(decisions: Decisions, pool: str) -> frozenset[EngineId]:
    return frozenset(
        key for key, one in decisions.engines.items() if key.pool == pool and one.health.value != "HEALTHY"
    )


def standing(decisions: Decisions | None, pool: str) -> Mapping[EngineId, float]:
    """Engines that are not simply in, with the share they get."""
    if decisions is None:
        return {}
    return {
        key: one.traffic_percent if one.health.value == "HEALTHY" else 0.0
        for key, one in decisions.engines.items()
        if key.pool == pool and (one.health.value != "HEALTHY" or one.traffic_percent < 100)
    }
