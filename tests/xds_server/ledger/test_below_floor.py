"""What is said of an order before it is taken: whether the floor lets it, now and once the engine is well."""

from dataclasses import replace

import pytest

from policies.model import PolicySet
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.fleet import EngineId, Fleet
from xds_server.ledger.orders import Short, below_floor

from .conftest import decided

DEAD = EngineDecision(health=Health.UNHEALTHY, reason="dead", since_s=1.0, ejector=Ejector.VERDICT)
ORDERED = replace(DEAD, reason="ordered", ejector=Ejector.OPERATOR)


def short(policies: PolicySet, fleet: Fleet, name: str, **engines: EngineDecision) -> Short | None:
    return below_floor(
        EngineId("chat", name),
        fleet.pools["chat"],
        decided(fleet, **engines).engines,
        policies.effective["chat"].breaker,
    )


def test_who_can_be_spared_may_go(policies: PolicySet, fleet: Fleet) -> None:
    assert short(policies, fleet, "r1") is None
    assert short(policies, fleet, "r1", r1=DEAD) is None


def test_who_cannot_be_spared_may_not(policies: PolicySet, fleet: Fleet) -> None:
    found = short(policies, fleet, "r1", r2=DEAD)
    assert found is not None
    assert found.now
    assert found.sentence == "without it zone a has 0 % of its slots, capacityFloorPercent is 50 %"


@pytest.mark.parametrize(("own", "now"), [(DEAD, False), (ORDERED, True)])
def test_who_is_out_on_evidence_costs_nothing_until_it_is_well(
    policies: PolicySet, fleet: Fleet, own: EngineDecision, now: bool
) -> None:
    found = short(policies, fleet, "r1", r1=own, r2=DEAD)
    assert found is not None
    assert found.now is now
    assert found.sentence in found.later
    assert "--force" in found.later
