"""Weights of engines that differ in speed: fair, bounded, and stable under noise."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.decide.decision_memory import CapacityEstimate, EndpointWeight
from xds_server.decide.decisions import AS_PEERS, DECLARED, MEASURED, EngineCapacity, EngineDecision, Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.decide.routing.endpoint_weights import (
    HOLD_S,
    MIN_FACTOR,
    SPACING_S,
    endpoint_weights,
    endpoint_weights_due_s,
)
from xds_server.model.fleet import Engine, EngineId

CALLS = 100.0


def engine(place: int, zone: str = "", slots: int = 8) -> Engine:
    return Engine(
        id=EngineId("pool", f"e{place}"), address="10.0.0.1", port=8000, zone=zone, region="", slots=slots,
        weight=1, tensor_parallel_group="", labels={},
    )  # fmt: skip


class Pool:
    """Engines of eight slots with these service times, in one zone or the named ones; time advances."""

    def __init__(
        self, *services_s: float, zones: str = "", calls: float = CALLS, wait_s: float = 2.0, proxies: int = 1
    ) -> None:
        self.engines = [engine(place, zones[place : place + 1]) for place in range(len(services_s))]
        self.decisions = {one.id: self.decision() for one in self.engines}
        self.capacities: dict[EngineId, EngineCapacity] = {}
        self.estimates: dict[EngineId, CapacityEstimate] = {}
        for place, service_s in enumerate(services_s):
            self.takes(place, service_s, calls)
        self.wait_s, self.proxies = wait_s, proxies
        self.learn, self.zones_moved_s = True, -math.inf
        self.known: Mapping[EngineId, EndpointWeight] = {}
        self.now_s = 0.0
        self.moves: list[float] = []

    @staticmethod
    def decision(health: Health = Health.HEALTHY, percent: float = 100.0) -> EngineDecision:
        return EngineDecision(health=health, reason="", since_s=0, traffic_percent=percent)

    def takes(self, place: int, service_s: float, calls: float = CALLS, source: str = MEASURED) -> None:
        key = self.engines[place].id
        self.capacities[key] = EngineCapacity(slots=8, service_s=service_s, source=source)
        self.estimates[key] = CapacityEstimate(done=calls, busy=calls * service_s)

    def look(self, passed_s: float = 0.5) -> list[float]:
        """The factors, in engine order, after this time."""
        self.now_s += passed_s
        last = self.factors()
        self.known = endpoint_weights(
            PoolEngines(engines=self.engines, decisions=self.decisions, capacities=self.capacities),
            self.estimates,
            learn=self.learn,
            wait_s=self.wait_s,
            proxies=self.proxies,
            zones_moved_s=self.zones_moved_s,
            before=self.known,
            now_s=self.now_s,
        )
        if self.factors() != last:
            self.moves.append(self.now_s)
        return self.factors()

    def factors(self) -> list[float]:
        return [self.known[one.id].factor if one.id in self.known else 1.0 for one in self.engines]

    def settle(self, for_s: float = 3 * HOLD_S) -> list[float]:
        for _ in range(round(for_s / 0.5)):
            self.look()
        return self.factors()


def test_equal_engines_have_no_endpoint_weights() -> None:
    pool = Pool(1.0, 1.1, 1.2, 0.9)
    assert pool.settle() == [1, 1, 1, 1]
    assert not pool.known


def test_slow_engine_gets_a_proportional_endpoint_weight() -> None:
    pool = Pool(1.0, 1.0, 1.0, 2.0)
    slow_s = 1.25**3
    fair = ((8 * (1 + 2 / slow_s) + 1) / slow_s) / (8 * 3 + 1)
    assert pool.settle() == [1, 1, 1, pytest.approx(fair, abs=0.001)]
    assert len(pool.moves) == 1


def test_many_proxies_make_weights_follow_rates() -> None:
    assert Pool(1.0, 2.0, proxies=10_000).settle()[1] == pytest.approx(1 / 1.25**3, rel=0.01)


@pytest.mark.parametrize("speeds", [(1.0, 2.0), (2.0, 1.0)])
def test_fastest_engine_keeps_its_full_weight(speeds: tuple[float, float]) -> None:
    factors = Pool(*speeds).settle()
    assert max(factors) == 1
    assert factors[speeds.index(2.0)] < 0.5


def test_endpoint_weights_compare_within_a_zone() -> None:
    assert Pool(1.0, 1.0, 3.0, 3.0, zones="aabb").settle() == [1, 1, 1, 1]


def test_brief_differences_change_no_endpoint_weight() -> None:
    pool = Pool(1.0, 1.0, 1.0)
    pool.settle()
    for _ in range(20):
        pool.takes(0, 2.0)
        pool.settle(HOLD_S - 1)
        pool.takes(0, 1.0)
        pool.look()
    assert pool.moves == []


def test_few_calls_change_no_endpoint_weight() -> None:
    assert Pool(1.0, 1.0, 1.5, calls=20).settle() == [1, 1, 1]
    assert Pool(1.0, 1.0, 1.5, calls=200).settle()[2] < 1


def test_recovered_engine_gets_an_equal_weight() -> None:
    pool = Pool(1.0, 1.0, 2.0)
    assert pool.settle()[2] < 1
    pool.takes(2, 1.2)
    assert pool.settle()[2] < 1  # within the step, but only just: no reason to move
    pool.takes(2, 1.05)
    assert pool.settle() == [1, 1, 1]
    assert not pool.known


@pytest.mark.parametrize("decision", [Pool.decision(Health.UNHEALTHY), Pool.decision(percent=25.0)])
@pytest.mark.parametrize("place", [0, 2])
def test_health_changes_no_endpoint_weight(decision: EngineDecision, place: int) -> None:
    pool = Pool(1.0, 1.0, 2.0)
    before = pool.settle()
    pool.decisions[pool.engines[place].id] = decision
    assert pool.settle() == before
    pool.takes(2, 1.0 if place == 2 else 2.0)  # reports on an ejected engine count once it is back
    assert pool.settle() == before
    assert len(pool.moves) == 1


def test_endpoint_weights_stay_without_an_engine_in_rotation() -> None:
    pool = Pool(1.0, 2.0)
    before = pool.settle()
    pool.decisions = dict.fromkeys(pool.decisions, Pool.decision(Health.UNHEALTHY))
    pool.wait_s = 0.0
    assert pool.settle() == before


def test_unmeasured_engine_gets_the_median_weight() -> None:
    pool = Pool(1.0, 2.0, 2.0, 2.0)
    pool.takes(3, 9.0, source=AS_PEERS)
    factors = pool.settle()
    assert factors[0] == 1
    assert factors[1] == factors[2] == factors[3] < 1
    pool.engines.append(engine(4))
    pool.decisions[pool.engines[4].id] = Pool.decision()
    pool.takes(4, 1.0, source=AS_PEERS)
    assert pool.look() == [1, *[factors[1]] * 4]


def test_unmeasured_or_disabled_weights_are_empty() -> None:
    pool = Pool(1.0, 2.0)
    pool.takes(0, 1.0, source=DECLARED)
    pool.takes(1, 2.0, source=DECLARED)
    assert pool.settle() == [1, 1]
    pool = Pool(1.0, 2.0)
    pool.settle()
    pool.learn = False
    assert pool.look() == [1, 1]


def test_zone_weights_precede_endpoint_weights() -> None:
    pool = Pool(1.0, 2.0)
    pool.look()
    pool.now_s += HOLD_S
    pool.zones_moved_s = pool.now_s
    assert pool.look(SPACING_S / 2) == [1, 1]
    assert pool.look(SPACING_S / 2)[1] < 1


def test_endpoint_weights_state_when_a_step_is_due() -> None:
    pool = Pool(1.0, 2.0)
    pool.look()
    assert endpoint_weights_due_s(pool.known) == pool.now_s + HOLD_S
    pool.settle()
    assert endpoint_weights_due_s(pool.known) == math.inf


def test_unchanged_weights_are_the_same_object() -> None:
    pool = Pool(1.0, 2.0)
    pool.settle()
    known = pool.known
    pool.look()
    assert pool.known is known


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(), engines=st.integers(2, 12), calls=st.sampled_from([20.0, 100.0]))
def test_noise_changes_no_endpoint_weight(seed: int, engines: int, calls: float) -> None:
    rng = random.Random(seed)
    pool = Pool(*[1.0] * engines, calls=calls)
    for _ in range(200):
        for place in range(engines):
            pool.takes(place, rng.uniform(0.85, 1.15), calls)
        pool.look()
    assert pool.moves == []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers())
def test_noise_moves_a_slow_engine_once(seed: int) -> None:
    rng = random.Random(seed)
    pool = Pool(1.0, 1.0, 1.0, 1.0, 2.0)
    for _ in range(200):
        for place in range(5):
            pool.takes(place, (2.0 if place == 4 else 1.0) * rng.uniform(0.85, 1.15))
        pool.look()
    assert 1 <= len(pool.moves) <= 2  # the first may be a step off
    assert pool.factors()[:4] == [1, 1, 1, 1]


SERVICES = st.lists(st.floats(0.05, 60.0), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    rounds=st.lists(SERVICES.map(lambda some: (some * 8)[:5]), min_size=1, max_size=8),
    wait_s=st.floats(0.0, 30.0),
    proxies=st.integers(0, 2000),
)
def test_weight_factors_are_bounded_and_move_rarely(
    rounds: Sequence[Sequence[float]], wait_s: float, proxies: int
) -> None:
    pool = Pool(*rounds[0], zones="aaabb", wait_s=wait_s, proxies=proxies)
    for services_s in rounds:
        for place, service_s in enumerate(services_s):
            pool.takes(place, service_s)
        for _ in range(14):
            factors = pool.look()
            assert all(MIN_FACTOR <= one <= 1 for one in factors)
            assert max(factors[:3]) == max(factors[3:]) == 1
    assert all(later - sooner >= HOLD_S for sooner, later in itertools.pairwise(pool.moves))


@settings(max_examples=40, deadline=None)
@given(services_s=SERVICES, order=st.randoms(use_true_random=False))
def test_weights_do_not_depend_on_engine_order(services_s: list[float], order: random.Random) -> None:
    pool, other = Pool(*services_s), Pool(*services_s)
    order.shuffle(other.engines)
    pool.settle()
    other.settle()
    assert pool.known == other.known
