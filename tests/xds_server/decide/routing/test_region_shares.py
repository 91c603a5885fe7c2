"""Home serves alone until it cannot, others help no longer than needed, and other revisions never do."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.resilience import Regions, Serving
from xds_server.decide.decision_memory import Demand, RegionMemory
from xds_server.decide.decisions import EngineCapacity, EngineDecision, Health, RegionShares
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.decide.routing.region_shares import (
    REGION_MEMORY_S,
    demand_by_region,
    region_of,
    region_shares,
    revisions_by_region,
)
from xds_server.model.fleet import Engine, EngineId


class World:
    """Engines of ten requests per second each, written as ``eu:2.1 eu:2.1 us:2.0``; time advances."""

    def __init__(self, engines: str = "eu eu us us", *, shadow: bool = False, **policy: Any) -> None:
        self.engines = [
            Engine(
                id=EngineId("pool", f"e{place}"), address="10.0.0.1", port=8000, zone=f"{region}-a", region=region,
                slots=5, weight=1, tensor_parallel_group="", labels={}, revision=revision,
            )
            for place, (region, _, revision) in enumerate(one.partition(":") for one in engines.split())
        ]  # fmt: skip
        self.policy, self.shadow = Regions.model_validate(policy), shadow
        self.memory = RegionMemory()
        self.out: frozenset[int] = frozenset()
        self.slowdown: dict[int, float] = {}
        self.now_s = 0.0

    def decide(
        self, asked: Mapping[str, float] | None = None, passed_s: float = 1.0
    ) -> Mapping[str, RegionShares]:
        """The shares after ``passed_s`` with this demand per second in each region."""
        self.now_s += passed_s
        revisions = revisions_by_region(self.engines, self.memory.revisions, self.now_s)
        healths = [Health.UNHEALTHY if place in self.out else Health.HEALTHY for place in range(len(self.engines))]
        engines = PoolEngines(
            engines=self.engines,
            decisions={
                one.id: EngineDecision(health=health, reason="", since_s=0)
                for one, health in zip(self.engines, healths, strict=True)
            },
            capacities={
                one.id: EngineCapacity(slots=5, service_s=0.5 * times, source="", slowdown=times)
                for place, one in enumerate(self.engines)
                for times in [self.slowdown.get(place, 1.0)]
            },
        )
        demand = {
            region: Demand(
                interactive_per_s=per_s, batch_per_s=0, sheds_interactive=False, sheds_batch=False, at_s=0
            )
            for region, per_s in (asked or {}).items()
        }
        self.memory = region_shares(
            engines,
            self.policy,
            demand_by_region(demand, {region: region for region in asked or {}}),
            shadow=self.shadow,
            before=replace(self.memory, revisions=revisions),
            now_s=self.now_s,
        )
        return self.memory.shares

    def lasting(self, asked: Mapping[str, float] | None, seconds: int) -> RegionShares:
        """What callers in the EU get after this many rounds of a second."""
        for _ in range(seconds):
            self.decide(asked)
        return self.memory.shares["eu"]


def test_single_region_has_no_region_shares() -> None:
    assert World("eu eu").decide() == {}
    assert World(": :").decide() == {}


def test_each_region_serves_locally_and_names_its_failover() -> None:
    shares = World().decide({"eu": 19, "us": 5})
    assert {region: dict(one.shares) for region, one in shares.items()} == {
        "": {"eu": 0.5, "us": 0.5},
        "eu": {"eu": 1.0},
        "us": {"us": 1.0},
    }
    assert [dict(tier) for tier in shares["eu"].failover] == [{"us": 1.0}]


def test_region_failover_and_failback_need_dwell_time() -> None:
    world = World()
    assert dict(world.lasting({"eu": 25, "us": 5}, 5).shares) == {"eu": 1.0}
    helped = world.lasting({"eu": 25, "us": 5}, 1)
    assert dict(helped.shares) == pytest.approx({"eu": 0.8, "us": 0.2})
    # Enough again, but not by the margin; then by the margin, but not for long enough.
    assert world.lasting({"eu": 18, "us": 5}, 60).failed_over
    assert world.lasting({"eu": 10, "us": 5}, 30).failed_over
    assert not world.lasting({"eu": 10, "us": 5}, 1).failed_over


def test_callers_of_a_region_that_became_slow_leave_at_once() -> None:
    world = World()
    world.lasting({"eu": 19, "us": 0}, 3)
    world.slowdown = {0: 10.0}
    assert dict(world.lasting({"eu": 19, "us": 0}, 1).shares) == {"eu": 1.0}
    world.slowdown = {0: 10.0, 1: 10.0}
    assert world.lasting({"eu": 19, "us": 0}, 1).shares["us"] >= 0.85


def test_burst_causes_no_region_failover() -> None:
    world = World()
    for _ in range(5):
        world.lasting({"eu": 40, "us": 5}, 4)
        assert dict(world.lasting({"eu": 10, "us": 5}, 1).shares) == {"eu": 1.0}


def test_region_overflow_is_limited_by_room_elsewhere() -> None:
    shares = World(enterAfter="0s").lasting({"eu": 40, "us": 18}, 2).shares
    assert dict(shares) == pytest.approx({"eu": 0.95, "us": 0.05})
    assert dict(World(enterAfter="0s").lasting({"eu": 40, "us": 30}, 2).shares) == {"eu": 1.0}


def test_region_failover_is_immediate_when_a_region_is_lost() -> None:
    world = World("eu eu us ap ap", order=["us"])
    world.decide({"eu": 15, "us": 1, "ap": 1})
    world.out = frozenset((0, 1))
    away = world.decide({"eu": 15, "us": 1, "ap": 1})["eu"]
    assert dict(away.shares) == pytest.approx({"us": 0.6, "ap": 0.4}), "in the order, as far as it has room"
    world.out = frozenset((0,))
    back = world.decide({"eu": 15, "us": 1, "ap": 1}, passed_s=3.0)["eu"]
    assert back.shares["eu"] == pytest.approx(0.7, abs=0.051), "it serves what it can again"


def test_without_telemetry_the_home_region_serves() -> None:
    world = World()
    world.out = frozenset((0,))
    assert dict(world.lasting(None, 60).shares) == {"eu": 1.0}


def test_region_shares_stay_without_an_engine() -> None:
    world = World()
    before = world.decide()["eu"]
    world.out = frozenset(range(4))
    assert world.decide()["eu"] is before


STANDBY = {"serving": "active-standby", "order": ["eu", "us"]}


def test_standby_region_failover_and_delayed_failback() -> None:
    world = World(**STANDBY, failbackAfter="60s")
    asked = {"eu": 5.0, "us": 5.0}
    assert {region: dict(one.shares) for region, one in world.decide(asked).items()} == {
        region: {"eu": 1.0} for region in ("", "eu", "us")
    }
    world.out = frozenset((0, 1))
    assert dict(world.decide(asked)["us"].shares) == {"us": 1.0}
    world.out = frozenset()
    assert dict(world.lasting(asked, 60).shares) == {"us": 1.0}
    # Unhealthy for a moment: the wait starts again.
    world.out = frozenset((0, 1))
    world.decide(asked)
    world.out = frozenset()
    assert dict(world.lasting(asked, 60).shares) == {"us": 1.0}
    assert dict(world.lasting(asked, 1).shares) == {"eu": 1.0}


def test_manual_failback() -> None:
    world = World(**STANDBY, failback="manual")
    world.out = frozenset((0, 1))
    world.decide()
    world.out = frozenset()
    assert dict(world.lasting(None, 1000).shares) == {"us": 1.0}
    world.policy = Regions.model_validate({**STANDBY, "failback": "automatic", "failbackAfter": "0s"})
    assert dict(world.lasting(None, 1).shares) == {"eu": 1.0}


def test_weaker_standby_causes_no_failover() -> None:
    world = World("eu eu us", **STANDBY, enterAfter="0s")
    assert dict(world.lasting({"eu": 50.0}, 5).shares) == {"eu": 1.0}


def test_region_outside_the_order_never_serves() -> None:
    world = World("eu us ap", **STANDBY)
    shares = world.decide()["ap"]
    assert (dict(shares.shares), [set(tier) for tier in shares.failover]) == ({"eu": 1.0}, [{"us"}])


def test_standby_during_a_rollout_serves_the_first_region_revision() -> None:
    world = World("eu:1 ap:2 eu:2", serving="active-standby", order=["ap", "eu"])
    world.out = frozenset((1,))
    shares = world.decide()
    assert {region: dict(one.shares) for region, one in shares.items()} == {
        region: {"eu": 1.0} for region in ("", "ap", "eu")
    }
    assert {key.engine for one in shares.values() for key in one.excluded} == {"e0"}
    world.out = frozenset((1, 2))
    stays = world.decide()["ap"]
    assert {key.engine for key in stays.excluded} == {"e0"}, "no engine rather than another model"


def test_next_region_sets_the_revision_if_the_first_had_no_engines() -> None:
    world = World("eu:1 us:2 us:1", serving="active-standby", order=["ap", "eu", "us"])
    shares = world.decide()["eu"]
    assert (dict(shares.shares), {key.engine for key in shares.excluded}) == ({"eu": 1.0}, {"e1"})


def test_no_revision_is_excluded_without_engines_in_the_order() -> None:
    world = World("us:2 :1", serving="active-standby", order=["eu"])
    assert {key.engine for one in world.decide().values() for key in one.excluded} == set()


@pytest.mark.parametrize(
    ("across", "kept_out"),
    [("same-major", {"e3", "e4"}), ("exact", {"e2", "e3", "e4"}), ("any", set())],
)
def test_other_revisions_serve_only_if_the_policy_allows_it(across: str, kept_out: set[str]) -> None:
    world = World("eu:2.1.0 eu:v2.2 us:2.0.3 us:3.0.0 us", acrossRevisions=across)
    world.decide()
    assert {key.engine for key in world.memory.shares["eu"].excluded} == kept_out
    world.out = frozenset((0, 1))
    away = world.decide()["eu"]
    assert {key.engine for key in away.excluded} == kept_out
    if across == "exact":
        assert away.shares["eu"] == 1.0, "no other region may serve"


def test_lost_region_revisions_are_remembered_temporarily() -> None:
    world = World("eu:2.0 us:3.0")
    world.decide()
    world.engines = world.engines[1:]
    assert {key.engine for key in world.decide()["eu"].excluded} == {"e1"}
    world.decide(passed_s=REGION_MEMORY_S)
    assert world.memory.shares == {}


def test_shadow_mode_region_failover_is_not_in_force() -> None:
    assert not World(shadow=True).decide()["eu"].in_force


def test_region_of_a_caller() -> None:
    engines = World("eu us").engines
    assert region_of("ap", "eu-a", engines) == "ap"
    assert region_of("", "us-a", engines) == "us"
    assert region_of("", "elsewhere", engines) == ""


@settings(max_examples=60)
@given(data=st.data())
def test_region_shares_sum_to_one_without_excluded_engines(data: st.DataObject) -> None:
    names = st.sampled_from(("eu:1", "eu:2", "us:1", "us:2", "ap:2", ":1"))
    world = World(
        " ".join(data.draw(st.lists(names, min_size=1, max_size=6))),
        serving=data.draw(st.sampled_from(("active-active", "active-standby"))),
        order=data.draw(st.lists(st.sampled_from(("eu", "us", "ap")), unique=True)),
        enterAfter="1s",
        leaveAfter="2s",
    )
    demand = st.dictionaries(st.sampled_from(("eu", "us", "ap")), st.floats(0, 80))
    for _ in range(6):
        world.out = data.draw(st.frozensets(st.integers(0, 5)))
        for caller, one in world.decide(data.draw(demand), data.draw(st.floats(0, 5))).items():
            assert sum(one.shares.values()) == pytest.approx(1)
            assert all(share > 0 for share in one.shares.values())
            listed = [*one.shares, *(region for tier in one.failover for region in tier)]
            assert len(listed) == len(set(listed)), "a region is in one tier only"
            own = {engine.revision for engine in world.engines if engine.region == measure(world, caller)}
            assert {key.engine for key in one.excluded} == {
                engine.id.engine for engine in world.engines if own and engine.revision not in own
            }


def measure(world: World, caller: str) -> str | None:
    """The region whose revisions callers here may get; None if none of the order has engines."""
    if world.policy.serving is Serving.ACTIVE_ACTIVE or not world.policy.order:
        return caller
    there = {engine.region for engine in world.engines}
    return next((region for region in world.policy.order if region in there), None)
