"""A pool of eight engines and its admission, for tests of the ceiling, its parts and its classes."""

from collections.abc import Mapping
from typing import Any

from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from policies.route import PriorityClass
from xds_server.decide.admission.ceiling import admission_decision, ceiling_for_role
from xds_server.decide.decision_memory import AdmissionMemory
from xds_server.decide.decisions import (
    AdmissionDecision,
    Ceiling,
    DegradationState,
    EngineCapacity,
    EngineDecision,
    Health,
)
from xds_server.decide.pool_inputs import ConnectedProxies, PoolEngines, PoolPolicy
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import PoolTraffic, Proxy, ProxyTraffic

BOTH = frozenset(PriorityClass)
ONE = frozenset({PriorityClass.INTERACTIVE})
INTERACTIVE, BATCH = PriorityClass.INTERACTIVE, PriorityClass.BATCH
POOL = EnginePoolSpec.model_validate({"model": "m", "serviceTime": "500ms"})


def engine(place: int, slots: int = 8) -> Engine:
    return Engine(
        id=EngineId("pool", f"e{place}"), address="10.0.0.1", port=8000, zone="", region="", slots=slots, weight=1,
        tensor_parallel_group="", labels={},
    )  # fmt: skip


def decided(health: Health = Health.HEALTHY, **fields: Any) -> EngineDecision:
    return EngineDecision(**{"health": health, "reason": "", "since_s": 100.0, **fields})


class Pool:
    """Eight engines of eight slots and 0.5 s, and the admission at consecutive moments."""

    def __init__(self, *, classes: frozenset[PriorityClass] = ONE, **resilience: Any) -> None:
        self.engines = [engine(place) for place in range(8)]
        self.decisions = {one.id: decided() for one in self.engines}
        self.capacities = {
            one.id: EngineCapacity(slots=float(one.slots), service_s=0.5, source="") for one in self.engines
        }
        self.resilience = ResilienceSpec.model_validate(resilience)
        self.classes = classes
        self.proxies = {"a": gateway("a"), "b": gateway("b")}
        self.roles: Mapping[str, int] | None = None
        self.ladder: DegradationState | None = None
        self.now_s = 100.0
        self.memory: AdmissionMemory | None = None

    def decide(self, passed_s: float = 0.1, **seen: ProxyTraffic) -> AdmissionDecision:
        """The decision after ``passed_s``; ``seen`` is the telemetry, none by default."""
        self.now_s += passed_s
        roles = {"gateway": 0, "sidecar": 0}
        for one in self.proxies.values():
            roles[one.role] += 1
        self.memory = admission_decision(
            PoolPolicy(spec=POOL, resilience=self.resilience, classes=self.classes),
            PoolEngines(engines=self.engines, decisions=self.decisions, capacities=self.capacities),
            traffic=PoolTraffic(proxies=seen) if seen else None,
            proxies=ConnectedProxies(by_node=self.proxies, by_role=self.roles or roles),
            degradation=self.ladder,
            before=self.memory,
            now_s=self.now_s,
        )
        return self.memory.decided

    def told(self, interactive: float, batch: float = 0.0, shed: float = 0.0, **fields: Any) -> ProxyTraffic:
        """Telemetry of a proxy with this demand and these refusals per second, in its class."""
        shedding = {INTERACTIVE: shed} if interactive else {BATCH: shed}
        return ProxyTraffic(
            arrivals_per_s={INTERACTIVE: interactive, BATCH: batch},
            shed_per_s=fields.pop("shed_per_s", shedding),
            heard_at_s=fields.pop("heard_at_s", self.now_s + 0.1),
            **fields,
        )

    def out(self, *places: int, **fields: Any) -> None:
        for place in places:
            self.decisions[EngineId("pool", f"e{place}")] = decided(
                Health.UNHEALTHY, **{"since_s": self.now_s, **fields}
            )


def gateway(node: str, **fields: Any) -> Proxy:
    return Proxy(**{"node": node, "zone": "", "role": "gateway", **fields})


def parts(one: AdmissionDecision) -> dict[str, int]:
    return {node: limit.interactive for node, limit in one.by_proxy.items()}


def limit(
    slots: int = 72,
    *,
    role: str = "gateway",
    gateways: int = 1,
    sidecars: int = 0,
    classes: frozenset[PriorityClass] = ONE,
    service_time: str = "2s",
    **resilience: Any,
) -> Ceiling:
    """The ceiling of a proxy of ``role`` without telemetry."""
    pool = EnginePoolSpec.model_validate({"model": "m", "serviceTime": service_time})
    spec = ResilienceSpec.model_validate(resilience)
    engines = [engine(0, slots)] if slots else []
    roles = {"gateway": gateways, "sidecar": sidecars}
    admitted = admission_decision(
        PoolPolicy(spec=pool, resilience=spec, classes=classes),
        PoolEngines(
            engines=engines,
            decisions={one.id: decided() for one in engines},
            capacities={
                one.id: EngineCapacity(slots=float(slots), service_s=pool.service_time, source="")
                for one in engines
            },
        ),
        traffic=None,
        proxies=ConnectedProxies(by_role=roles),
        degradation=None,
        before=None,
        now_s=0.0,
    )
    return ceiling_for_role(admitted, spec, role, roles)
