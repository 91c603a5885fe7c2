"""What a large fleet is made of: its policies, its engines, and what can go wrong with them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from chaos.fake_engine.engine_faults import EngineCrash, EngineErrorAfterWork, EngineFault, EngineHang
from chaos.faults.actions import FaultAction, KillProcess, ProcessRole, SetEngineFault
from chaos.scenario.experiment_plan import Experiment
from chaos.simulator.arrays import EngineArrays, Floats, Ints
from chaos.simulator.config_translator import ProxyConfigTranslator
from chaos.simulator.simulated_injector import NotSimulatedError
from chaos.simulator.simulated_lab import simulated_blueprint
from chaos.testbed.blueprint import lab_blueprint
from chaos.testbed.subjects import PolicySubject
from engine.agent.agent_config import AgentConfig
from engine.report import Verdict
from policies.model import PolicySet
from policies.pool import EnginePool
from xds_server.decide.decisions import Decisions, Health
from xds_server.model.fleet import EngineId
from xds_server.model.pool_traffic import LatencyTail

_AGENT: Final = AgentConfig()


@dataclass(slots=True, kw_only=True, eq=False)
class Trouble:
    """What is wrong with one engine. ``told_s`` is when its agent says so, and what."""

    fault: EngineFault
    told_s: float
    verdict: Verdict


class LargeFleet:
    """The engines, their troubles, and what is counted of them all.

    ``recovering`` are engines that are out of trouble, and not yet in as usual. ``ended`` and ``failed`` count the
    calls of each engine, ``ended_before`` those up to its last change. ``refused`` is of the present second.
    """

    def __init__(self, arrays: EngineArrays, step_s: float, longest_steps: int) -> None:
        count = len(arrays.slots)
        self.arrays = arrays
        self.step_s = step_s
        self.troubles: dict[int, Trouble] = {}
        self.recovering: set[int] = set()
        self.boots: dict[int, int] = {}
        self.failing: Floats = np.zeros(count)
        self.reachable = np.ones(count, dtype=bool)
        self.ended: Ints = np.zeros(count, dtype=np.int64)
        self.failed: Ints = np.zeros(count, dtype=np.int64)
        self.ended_before: dict[int, int] = {}
        self.done_per_s = 0.0
        self.refused = 0.0
        self._latencies: Floats = np.zeros(longest_steps)

    @property
    def unsettled(self) -> bool:
        """Whether any engine is in trouble, or was until lately."""
        return bool(self.troubles or self.recovering)

    def strike(self, place: int, fault: EngineFault | None, now_s: float) -> None:
        """Break an engine, or heal it. NotSimulatedError where nobody knows what the fault would do."""
        arrays = self.arrays
        if place not in self.troubles and place not in self.recovering:
            # Of an engine that is well the mean is told, and its count must go on from there.
            self.ended[place] = int(self.ended.mean())
        healed = self.troubles.pop(place, None)
        arrays.rate[place] = arrays.usual[place]
        self.failing[place] = 0.0
        self.reachable[place] = True
        self.ended_before[place] = int(self.ended[place])
        if fault is None:
            self.recovering.add(place)
            if healed is not None and isinstance(healed.fault, EngineCrash):
                self.boots[place] = self.boots.get(place, 1) + 1
            return
        told_s, verdict = told_of(fault, now_s)
        self.recovering.discard(place)
        self.troubles[place] = Trouble(fault=fault, told_s=told_s, verdict=verdict)
        match fault:
            case EngineCrash():
                self.reachable[place] = False
                arrays.rate[place] = 0.0
            case EngineHang():
                arrays.rate[place] = 0.0
            case EngineErrorAfterWork():
                self.failing[place] = fault.share
            case _:
                raise NotSimulatedError(f"a large fleet does not know {fault}")

    def timed(self, steps: Ints) -> None:
        """Remember how long these calls take; older ones count ever less."""
        longest = len(self._latencies)
        self._latencies += np.bincount(np.minimum(steps, longest - 1), minlength=longest)
        self._latencies *= 0.999

    def tail(self) -> LatencyTail | None:
        """How long calls took lately."""
        total = self._latencies.sum()
        if total < 1:
            return None
        sums = np.cumsum(self._latencies) / total
        p50, p95, p99 = (float(np.searchsorted(sums, share) + 1) * self.step_s for share in (0.5, 0.95, 0.99))
        longest = float(np.flatnonzero(self._latencies > 0.5).max(initial=1) + 1) * self.step_s
        return LatencyTail(p50_s=p50, p95_s=p95, p99_s=p99, calls=int(total), longest_s=longest)


def fault_of(pull: FaultAction) -> EngineFault:
    if isinstance(pull, SetEngineFault) and isinstance(
        pull.fault, EngineCrash | EngineErrorAfterWork | EngineHang
    ):
        return pull.fault
    if isinstance(pull, KillProcess) and pull.part is ProcessRole.ENGINE:
        return EngineCrash()
    if isinstance(pull, KillProcess) and pull.part is ProcessRole.AGENT:
        return EngineCrash()
    raise NotSimulatedError(f"a large fleet knows crashes, hangs and errors, and not {pull}; use simulate")


def told_of(fault: EngineFault, now_s: float) -> tuple[float, Verdict]:
    """When and how an agent speaks of it: a crash breaks its connection, a hang takes its patience and a look."""
    match fault:
        case EngineCrash():
            return now_s, Verdict.DEAD
        case EngineHang():
            return now_s + _AGENT.stall_after_s, Verdict.HUNG
        case EngineErrorAfterWork(share=1.0):
            # Its agent's own questions fail as well.
            return now_s + _AGENT.unhealthy_after * _AGENT.interval_s, Verdict.DEGRADED
        case _:
            return math.inf, Verdict.READY


def large_policies(
    experiment: Experiment, subject: PolicySubject
) -> tuple[PolicySet, str, Experiment, ProxyConfigTranslator]:
    """The policies fitted to one engine, and then given all of them: ten thousand are no matter of text."""
    one = replace(experiment, engines=experiment.engines[:1], outages=())
    plan = lab_blueprint(one, subject)
    assert plan.fitting is not None  # noqa: S101 -- it has policies
    small, _ = simulated_blueprint(plan)
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
    return policies, plan.pool, adapted, ProxyConfigTranslator(policies, plan.fitting.shape, plan.fitting.port)


def standing(decisions: Decisions, pool: str) -> Mapping[EngineId, float]:
    """Engines that are not simply in, with the share of their traffic that they get: 0 of those that are out."""
    return {
        key: one.traffic_percent if one.health is Health.HEALTHY else 0.0
        for key, one in decisions.pools[pool].engines.items()
        if one.health is not Health.HEALTHY or one.traffic_percent < 100
    }
