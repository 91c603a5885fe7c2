"""Pools, decisions and contexts for explanations."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from policies.load import load
from policies.model import PolicySet
from xds_server.admin.views.context import ViewContext
from xds_server.decide.decisions import Decisions, EngineDecision, Health, PoolDecisions
from xds_server.ledger.event import ClockReading
from xds_server.ledger.event_store import EventStore
from xds_server.model.fleet import EngineId, Fleet, declared, with_traffic
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic, ProxyTraffic

POLICIES = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: m
  probe: {stallAfter: 2s}
  endpoints:
    - {address: 127.0.0.1, port: 1, name: r1, zone: a}
    - {address: 127.0.0.1, port: 2, name: r2, zone: a}
    - {address: 127.0.0.1, port: 3, name: r3, zone: b}
    - {address: 127.0.0.1, port: 4, name: r4, zone: b}
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {name: chat}
spec:
  pools: [chat]
  breaker:
    errorRatePercent: 30
"""


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    file = tmp_path_factory.mktemp("policies") / "chat.yaml"
    file.write_text(POLICIES)
    return load((Path(file),))


@pytest.fixture
def fleet(policies: PolicySet) -> Fleet:
    return declared(policies)


def decided(fleet: Fleet, **engines: EngineDecision) -> Decisions:
    """Decisions in which these engines are as given and all others are healthy."""
    well = EngineDecision(health=Health.HEALTHY, reason="ready", since_s=0.0)
    pools: dict[str, PoolDecisions] = {}
    every: dict[EngineId, EngineDecision] = {}
    for name, declared_engines in fleet.pools.items():
        own = {engine.id: engines.get(engine.id.engine, well) for engine in declared_engines}
        every.update(own)
        pools[name] = PoolDecisions(engines=own, zones={}, ceilings={}, declared=declared_engines)
    return Decisions(engines=every, zone_weights={}, ceilings={}, pools=pools)


def with_pool(decisions: Decisions, **parts: object) -> Decisions:
    """The decisions with other parts for the pool chat."""
    pool = replace(decisions.pools["chat"], **parts)
    return replace(decisions, pools={"chat": pool})


def seen(fleet: Fleet, engines: Mapping[str, EngineTraffic], **proxies: ProxyTraffic) -> Fleet:
    """The fleet with this traffic of the pool chat."""
    return with_traffic(fleet, {"chat": PoolTraffic(engines=engines, proxies=proxies, heard_at_s=100.0)})


def scene(policies: PolicySet, fleet: Fleet, decisions: Decisions, book: EventStore | None = None) -> ViewContext:
    return ViewContext(
        policies=policies,
        fleet=fleet,
        decisions=decisions,
        event_store=book or EventStore(),
        now=ClockReading(s=100.0, unix_s=1_000_100.0),
    )
