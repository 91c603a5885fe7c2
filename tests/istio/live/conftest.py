"""Pools, engines and decisions made by hand."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from istio.live.desired_state import DesiredState, desired_state
from policies.load import load_contents
from xds_server.decide.decisions import Decisions, EngineDecision, Health
from xds_server.model.fleet import EngineId, declared
from xds_server.model.pod_state import PodRef

POLICY = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat, namespace: models}
spec:
  model: m
  endpoints:
    - {name: a, address: 127.0.0.1, port: 8001, zone: z1, region: r1}
    - {name: b, address: 127.0.0.1, port: 8002, zone: z1, region: r1}
    - {name: c, address: 127.0.0.1, port: 8003, zone: z2, region: r1}
---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: other}
spec:
  model: m
  endpoints:
    - {name: a, address: 127.0.0.1, port: 8001}
"""
MINE = "here"


def pod(name: str) -> PodRef:
    return PodRef(namespace="models", name=name, uid=f"uid-{name}")


@pytest.fixture
def asked() -> Callable[..., DesiredState]:
    """What is wanted where the engines in ``out`` are out, and those in ``pods`` run in pods."""

    def made(
        *,
        out: Mapping[str, Health] = MappingProxyType({}),
        trial: Mapping[str, float] = MappingProxyType({}),
        pods: Mapping[str, PodRef] = MappingProxyType({}),
        policy: str = POLICY,
        unproven: Collection[str] = (),
    ) -> DesiredState:
        policies = load_contents({Path("policy.yaml"): policy.encode()})
        fleet = declared(policies)
        decisions = {
            engine.id: EngineDecision(
                health=out.get(str(engine.id), Health.HEALTHY),
                reason="because",
                since_s=0.0,
                traffic_percent=trial.get(str(engine.id), 100.0),
            )
            for engines in fleet.pools.values()
            for engine in engines
        }
        refs = {EngineId(*name.split("/")): ref for name, ref in pods.items()}
        all_decisions = replace(_NONE, engines=MappingProxyType(decisions))
        unknown = {EngineId(*name.split("/")) for name in unproven}
        return desired_state(policies, fleet, all_decisions, refs, namespace=MINE, unproven=unknown)

    return made


_NONE = Decisions(engines={}, zone_weights={}, ceilings={})
