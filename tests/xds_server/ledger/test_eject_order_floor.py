"""Whether the floor allows an order, now and after the engine has recovered."""

from dataclasses import replace

import pytest

from policies.model import PolicySet
from tests.xds_server.ledger.conftest import decided
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.ledger.operator_orders import FloorViolation, floor_violation
from xds_server.model.fleet import EngineId, Fleet

DEAD = EngineDecision(health=Health.UNHEALTHY, reason="dead", since_s=1.0, ejector=Ejector.VERDICT)
ORDERED = replace(DEAD, reason="ordered", ejector=Ejector.OPERATOR)


def short(policies: PolicySet, fleet: Fleet, name: str, **engines: EngineDecision) -> FloorViolation | None:
    return floor_violation(
        EngineId("chat", name),
        fleet.pools["chat"],
        decided(fleet, **engines).engines,
        policies.effective["chat"].breaker,
    )


def test_eject_order_above_the_floor_is_allowed(policies: PolicySet, fleet: Fleet) -> None:
    assert short(policies, fleet, "r1") is None
    assert short(policies, fleet, "r1", r1=DEAD) is None


def test_eject_order_below_the_floor_is_denied(policies: PolicySet, fleet: Fleet) -> None:
    found = short(policies, fleet, "r1", r2=DEAD)
    assert found is not None
    assert found.now
    assert found.sentence == "this would leave zone a with 0 % of its slots (floor: 50 %)"


@pytest.mark.parametrize(("own", "now"), [(DEAD, False), (ORDERED, True)])
def test_eject_order_of_an_already_ejected_engine_is_free_until_it_heals(
    policies: PolicySet, fleet: Fleet, own: EngineDecision, now: bool
) -> None:
    found = short(policies, fleet, "r1", r1=own, r2=DEAD)
    assert found is not None
    assert found.now is now
    assert found.sentence in found.later
    assert "--force" in found.later
