"""Zone weights: by capacity and measured demand, and stable under noise."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.resilience import Zones
from xds_server.decide.decision_memory import Demand, ZoneMemory
from xds_server.decide.decisions import EngineCapacity, EngineDecision, Health, ShareRamp, ZoneShares
from xds_server.decide.pool_inputs import Callers, PoolEngines
from xds_server.decide.routing.zone_shares import zone_shares
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import Proxy


class Map:
    """Engines of eight slots and 0.5 s, one per letter, in that letter's zone; time advances."""

    def __init__(self, zones: str = "aabbcc", *, shadow: bool = False, **policy: Any) -> None:
        self.engines = [
            Engine(
                id=EngineId("pool", f"e{place}"), address="10.0.0.1", port=8000, zone=zone, region="", slots=8,
                weight=1, tensor_parallel_group="", labels={},
            )
            for place, zone in enumerate(zones)
        ]  # fmt: skip
        self.decisions = {
            one.id: EngineDecision(health=Health.HEALTHY, reason="", since_s=0) for one in self.engines
        }
        self.capacities = {one.id: EngineCapacity(slots=8, service_s=0.5, source="") for one in self.engines}
        self.policy, self.shadow = Zones.model_validate(policy), shadow
        self.ramps: dict[EngineId, ShareRamp] = {}
        self.in_flight: dict[str, int] = {}
        self.memory = ZoneMemory()
        self.now_s = 0.0
        self.weighed_at_s = -1.0

    def out(self, *places: int) -> "Map":
        for place in places:
            self.decisions[EngineId("pool", f"e{place}")] = EngineDecision(
                health=Health.UNHEALTHY, reason="", since_s=0
            )
        return self

    def ramp(self, percent: float, *places: int) -> "Map":
        for place in places:
            self.ramps[EngineId("pool", f"e{place}")] = ShareRamp(percent=percent, full_at_s=9)
        return self

    def decide(self, asked: Mapping[str, float] | None = None, passed_s: float = 1.0) -> Mapping[str, ZoneShares]:
        """The shares after ``passed_s`` with this demand per second at a gateway in each zone."""
        self.now_s += passed_s
        demand = {
            zone: Demand(
                interactive_per_s=per_s, batch_per_s=0, sheds_interactive=False, sheds_batch=False, at_s=0
            )
            for zone, per_s in (asked or {}).items()
        }
        proxies = {zone: Proxy(node=zone, zone=zone, role="gateway") for zone in "abc"}
        self.memory = zone_shares(
            PoolEngines(
                engines=self.engines,
                decisions=self.decisions,
                capacities=self.capacities,
                ramps=self.ramps,
                in_flight=self.in_flight,
            ),
            self.policy,
            Callers(zones="abc", proxies=proxies, demand=demand),
            shadow=self.shadow,
            before=self.memory,
            weighed_at_s=self.weighed_at_s,
            now_s=self.now_s,
        )
        return self.memory.shares

    def load(self, asked: Mapping[str, float]) -> dict[str, float]:
        """How full each zone's engines are when every caller follows its weights, as Envoy computes them."""
        per_s: dict[str, float] = {}
        for caller, rate in asked.items():
            weights = self.memory.shares[caller].weights
            product = {
                zone: weight * sum(self._in(one) for one in self.engines if one.zone == zone)
                / sum(one.zone == zone for one in self.engines)
                for zone, weight in weights.items()
            }  # fmt: skip
            for zone, value in product.items():
                per_s[zone] = per_s.get(zone, 0.0) + rate * value / sum(product.values())
        able = {
            zone: sum(
                self.capacities[one.id].slots / self.capacities[one.id].service_s
                for one in self.engines
                if one.zone == zone and self._in(one)
            )
            for zone in per_s
        }
        return {zone: rate / able[zone] for zone, rate in per_s.items()}

    def _in(self, one: Engine) -> bool:
        return self.decisions[one.id].health is Health.HEALTHY


def test_zone_with_spare_capacity_keeps_traffic_local() -> None:
    site = Map().out(0)
    assert site.decide()["a"].weights["a"] < 800, "with unknown demand, half is assumed not to fit"
    site.memory = ZoneMemory()
    assert site.decide({"a": 10, "b": 20, "c": 20})["a"].weights["a"] == 1000


def test_zone_on_trial_keeps_the_share_of_a_trial() -> None:
    here = Map("abc")
    here.decisions[EngineId("pool", "e0")] = EngineDecision(
        health=Health.HEALTHY, reason="", since_s=0, traffic_percent=25
    )
    shares = here.decide({"a": 4, "b": 4, "c": 4})
    assert shares["a"].weights == {"a": 250, "b": 380, "c": 380}
    assert "on trial" in shares["a"].reason


def test_zone_overflow_spills_to_zones_with_capacity() -> None:
    asked = {"a": 48.0, "b": 24.0, "c": 4.0}  # each can serve 32
    site = Map()
    site.decide(asked)
    load = site.load(asked)
    assert load["a"] == pytest.approx(0.9, abs=0.02)
    assert max(load.values()) <= 0.92
    assert load["c"] > load["b"] - 0.75, "the emptier zone gets more of it"
    assert site.memory.shares["c"].weights["c"] == 1000


def test_zone_overload_is_spread_equally() -> None:
    asked = {"a": 90.0, "b": 30.0, "c": 24.0}
    site = Map()
    site.decide(asked)
    assert site.load(asked) == pytest.approx(dict.fromkeys("abc", 1.5), rel=0.05)


def test_zone_capacity_counts_engine_speed() -> None:
    site = Map("aabb")
    site.capacities[EngineId("pool", "e0")] = EngineCapacity(slots=24, service_s=0.5, source="")
    site.capacities[EngineId("pool", "e2")] = EngineCapacity(slots=8, service_s=2.0, source="")
    # a can serve 64 per second, b 20
    assert site.decide()[""].weights == pytest.approx({"a": 760, "b": 240}, abs=11)
    site.memory = ZoneMemory()
    asked = {"a": 30.0, "b": 30.0, "c": 0.0}
    site.decide(asked)
    assert site.load(asked)["b"] == pytest.approx(0.9, abs=0.03)


def test_zone_without_telemetry_has_average_demand() -> None:
    site = Map()
    told = site.decide({"a": 48, "b": 10, "c": 29})["a"].weights
    site.memory = ZoneMemory()
    assert site.decide({"a": 48, "b": 10})["a"].weights == told


def test_zone_loss_and_return_reroute_at_once() -> None:
    asked = {"a": 20.0, "b": 20.0, "c": 10.0}
    site = Map()
    site.decide(asked)
    site.out(0, 1)
    lost = site.decide(asked, passed_s=0.05)
    assert "a" not in lost["a"].weights
    assert lost["a"].weights["c"] > lost["a"].weights["b"]
    assert site.load(asked)["b"] <= 1
    site.decisions = dict.fromkeys(site.decisions, EngineDecision(health=Health.HEALTHY, reason="", since_s=0))
    assert site.decide(asked, passed_s=0.05)["a"].weights["a"] == 1000


def test_cross_zone_limit_holds() -> None:
    site = Map(maxCrossZonePercent=20)
    assert site.decide({"a": 90, "b": 1, "c": 1})["a"].weights["a"] == 800


def test_shadow_mode_zone_weights_follow_capacity() -> None:
    site = Map(shadow=True)
    shares = site.decide({"a": 90, "b": 1, "c": 1})
    assert shares["a"].weights == shares["b"].weights == shares[""].weights == dict.fromkeys("abc", 330)
    assert "not enforced" in shares["a"].reason


def test_noise_moves_no_zone_weight_and_changes_do_in_seconds() -> None:
    site, draw = Map(), random.Random(7)
    moves = dict.fromkeys("abc", 0)

    def second(means: Mapping[str, float]) -> None:
        for _ in range(10):
            before = dict(site.memory.shares)
            # Rates are over two seconds, so chance is that of two seconds' requests.
            asked = {zone: max(0.0, draw.gauss(mean, (mean / 2) ** 0.5)) for zone, mean in means.items()}
            site.decide(asked, passed_s=0.1)
            for zone in moves:
                moves[zone] += bool(before) and before[zone].weights is not site.memory.shares[zone].weights

    for _ in range(5):
        second({"a": 25.0, "b": 20.0, "c": 12.0})
    moves = dict.fromkeys(moves, 0)
    for _ in range(60):
        second({"a": 25.0, "b": 20.0, "c": 12.0})
    assert moves == {"a": 0, "b": 0, "c": 0}
    for _ in range(15):
        second({"a": 60.0, "b": 20.0, "c": 5.0})
    assert site.memory.shares["a"].weights["a"] == pytest.approx(480, abs=60)


def test_zone_and_endpoint_weights_move_at_different_times() -> None:
    site = Map()
    first = site.decide({"a": 20, "b": 20, "c": 20})["a"]
    site.weighed_at_s = 1.9
    assert site.decide({"a": 90, "b": 20, "c": 20}, passed_s=1.3)["a"].weights is first.weights
    assert site.decide({"a": 90, "b": 20, "c": 20}, passed_s=0.2)["a"].weights["a"] < 1000


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_zone_weight_updates_are_rate_limited(data: st.DataObject) -> None:
    site = Map(data.draw(st.sampled_from(["aabbcc", "abc", "aaaabb"])))
    moved: dict[str, list[float]] = {zone: [] for zone in ("", *"abc")}
    for _ in range(data.draw(st.integers(1, 20))):
        before = site.memory.shares
        asked = {zone: data.draw(st.floats(0, 200)) for zone in data.draw(st.sets(st.sampled_from("abc")))}
        for place in data.draw(st.sets(st.integers(0, len(site.engines) - 1), max_size=1)):
            site.capacities[EngineId("pool", f"e{place}")] = EngineCapacity(
                slots=data.draw(st.integers(1, 8)), service_s=0.5, source=""
            )
        after = site.decide(asked, passed_s=data.draw(st.floats(0.01, 1.0)))
        for zone, share in after.items():
            assert all(1 <= weight <= 1000 for weight in share.weights.values())
            assert 950 <= sum(share.weights.values()) <= 1050
            assert share.reason
            if zone in before and before[zone].weights is not share.weights:
                moved[zone].append(site.now_s)
    for times in moved.values():
        assert all(later - earlier >= 0.5 - 1e-9 for earlier, later in itertools.pairwise(times))


# -- slow start -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("percent", [10.0, 50.0, 90.0])
def test_engine_alone_in_its_zone_gets_the_part_of_its_ramp(percent: float) -> None:
    site = Map("abc").ramp(percent, 0)
    weights = site.decide({"a": 3, "b": 3, "c": 3})["a"].weights
    assert weights["a"] == pytest.approx(10 * percent, abs=10)
    assert weights["b"] == pytest.approx(weights["c"], abs=10)
    assert "slow start in a" in site.memory.shares["a"].reason
    assert site.memory.shares["b"].weights["b"] == 1000


def test_zone_with_a_full_engine_keeps_its_traffic() -> None:
    assert Map("aab").ramp(10, 0).decide({"a": 3, "b": 3})["a"].weights["a"] == 1000


def test_ramping_engine_counts_with_its_part_of_capacity() -> None:
    site = Map("aab").ramp(10, 0)
    # 16/s each: the full one and a tenth of the other serve 0.9 x 17.6 of 30.
    assert site.decide({"a": 30, "b": 0, "c": 0})["a"].weights["a"] == pytest.approx(530, abs=60)


def test_zones_that_ramp_together_share_as_usual() -> None:
    asked = {"a": 12, "b": 3, "c": 3}
    usual = Map("abc").decide(asked)
    ramping = Map("abc").ramp(10, 0, 1, 2).decide(asked)
    assert {zone: one.weights for zone, one in ramping.items()} == {
        zone: one.weights for zone, one in usual.items()
    }


def test_limit_of_crossing_outranks_a_ramp() -> None:
    asked = {"a": 3, "b": 3, "c": 3}
    site = Map("abc", maxCrossZonePercent=30).ramp(10, 0)
    assert site.decide(asked)["a"].weights["a"] == pytest.approx(700, abs=10)
    assert Map("abc", spill=False).ramp(10, 0).decide(asked)["a"].weights == {"a": 1000}


@given(
    zones=st.text("abc", min_size=1, max_size=6),
    percents=st.lists(st.floats(0, 100), min_size=6, max_size=6),
    asked=st.fixed_dictionaries({zone: st.floats(0, 100) for zone in "abc"}),
    local=st.booleans(),
)
def test_ramps_leave_every_caller_a_zone(
    zones: str, percents: list[float], asked: dict[str, float], local: bool
) -> None:
    site, usual = Map(zones, preferLocal=local), Map(zones, preferLocal=local)
    for place, _ in enumerate(zones):
        site.ramp(max(0.1, percents[place]), place)
    full, ramped = usual.decide(asked), site.decide(asked)
    most = max(percents[: len(zones)])
    for caller, one in ramped.items():
        assert sum(one.weights.values()) >= 900
        for zone, weight in one.weights.items():
            part = max(percents[place] for place, own in enumerate(zones) if own == zone)
            if 0.1 < part < most:
                assert weight <= full[caller].weights.get(zone, 0) * part / most + 11


@pytest.mark.parametrize("prefer_local", [True, False])
def test_zone_whose_requests_wait_longer_gets_fewer_until_they_are_served(prefer_local: bool) -> None:
    """Its demand may be underestimated for seconds, and its queue would grow for as long."""
    fleet = Map("abb", preferLocal=prefer_local)
    before = fleet.decide({"a": 14})["a"].weights["a"]
    fleet.in_flight = {"e0": 88, "e1": 4, "e2": 4}
    assert fleet.decide({"a": 14})["a"].weights["a"] <= 50
    fleet.in_flight = {"e0": 24, "e1": 4, "e2": 4}
    assert 50 < fleet.decide({"a": 14})["a"].weights["a"] < before
    fleet.in_flight = {"e0": 11, "e1": 4, "e2": 4}
    assert fleet.decide({"a": 14})["a"].weights["a"] == before


def test_zones_that_all_wait_alike_keep_their_shares() -> None:
    fleet = Map("ab")
    before = dict(fleet.decide({"a": 14, "b": 18})["a"].weights)
    fleet.in_flight = {"e0": 88, "e1": 90}
    assert dict(fleet.decide({"a": 14, "b": 18})["a"].weights) == before
