"""The pool's own breaker: a pool that fails or sheds everything gives way to its fallback, and returns."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from policies.route import ModelRoute
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import Decisions
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import Fleet, declared, with_traffic
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic
from xds_server.translate.cluster_weights import live_weights, ready_pools

STEP_S = 0.1
SIZES = {"main": 4, "spare": 2, "last": 2}


def policies(fallbacks: Sequence[str], **resilience: object) -> PolicySet:
    pools = {
        name: EnginePool.model_validate(
            {
                "metadata": {"name": name},
                "spec": {
                    "model": "m",
                    "endpoints": [
                        {"name": f"{name}{place}", "address": "10.0.0.1", "port": 8000 + place}
                        for place in range(size)
                    ],
                },
            }
        )
        for name, size in SIZES.items()
    }
    route = ModelRoute.model_validate(
        {
            "metadata": {"name": "r"},
            "spec": {"listener": {"port": 8080}, "pools": [{"pool": "main"}], "fallbacks": list(fallbacks)},
        }
    )
    effective = {name: ResilienceSpec.model_validate(resilience) for name in SIZES}
    return PolicySet(pools=pools, routes={"r": route}, policies={}, effective=effective)


Fault = Callable[[float], str]
"""How a call to a pool ends at a time: ``good``, ``failed`` or ``shed``."""


class World:
    """A pool, its fallbacks and one route; each step's requests follow the decided weights."""

    def __init__(
        self,
        rate_per_s: float = 40.0,
        seed: int = 1,
        fallbacks: Sequence[str] = ("spare",),
        **resilience: object,
    ) -> None:
        self.fallbacks = fallbacks
        self.policies = policies(fallbacks, **resilience)
        self.fleet: Fleet = declared(self.policies)
        self.memory = NO_MEMORY
        self.rng = random.Random(seed)
        self.rate_per_s = rate_per_s
        self.now_s = 100.0
        self.calls = {engine.id: EngineTraffic() for engine in itertools.chain(*self.fleet.pools.values())}
        self.weights = {"main": 1} | dict.fromkeys(fallbacks, 0)
        self.heard_s = dict.fromkeys(SIZES, self.now_s)
        self.results: list[tuple[float, bool]] = []
        self.moves: list[tuple[float, float]] = []
        self.due = 0.0
        self.decided = self.decide()

    def decide(self) -> Decisions:
        self.fleet = with_traffic(
            self.fleet,
            {
                name: PoolTraffic(
                    engines={one.id.engine: self.calls[one.id] for one in self.fleet.pools[name]},
                    heard_at_s=self.heard_s[name],
                )
                for name in SIZES
            },
        )
        decided, self.memory = decide(
            self.policies,
            self.fleet,
            self.memory,
            proxies=ConnectedProxies(by_role={"gateway": 1}),
            now_s=self.now_s,
        )
        ladders = {name: one.degradation for name, one in decided.pools.items() if one.degradation}
        self.weights = dict(
            live_weights(
                self.policies.routes["r"], ("main", *self.fallbacks), ready_pools(self.fleet, decided), ladders
            )
        )
        share = 1 - self.weights["main"] / sum(self.weights.values())
        if not self.moves or self.moves[-1][1] != share:
            self.moves.append((self.now_s, share))
        return decided

    def run(self, seconds: float, **faults: Fault) -> "World":
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            self.due += self.rate_per_s * STEP_S
            while self.due >= 1:
                self.due -= 1
                self._request(faults)
            self.decided = self.decide()
        return self

    def _request(self, faults: dict[str, Fault]) -> None:
        pool = self.rng.choices(list(self.weights), list(self.weights.values()))[0]
        there = [
            one.id for one in self.fleet.pools[pool] if self.decided.engines[one.id].health.value == "HEALTHY"
        ]
        if not there:
            self.results.append((self.now_s, False))
            return
        self.heard_s[pool] = self.now_s
        key = self.rng.choice(there)
        ended = faults[pool](self.now_s) if pool in faults else "good"
        calls = self.calls[key]
        failed = ended == "failed"
        if ended != "shed":
            calls = replace(
                calls,
                window_calls=min(25, calls.window_calls + 1),
                failures_in_a_row=calls.failures_in_a_row + 1 if failed else 0,
                newest_failed=(calls.newest_failed << 1 | failed) & 0xFFFFFFFF,
                succeeded=calls.succeeded + (not failed),
                failed=calls.failed + failed,
            )
            calls = replace(calls, window_failures=(calls.newest_failed & (1 << 25) - 1).bit_count())
        else:
            calls = replace(calls, shed=calls.shed + 1, neutral=calls.neutral + 1)
        self.calls[key] = replace(calls, heard_at_s=self.now_s)
        self.results.append((self.now_s, ended == "good"))

    def good_percent(self, since_s: float) -> float:
        mine = [good for at_s, good in self.results if at_s > since_s]
        return 100 * sum(mine) / len(mine)

    def share(self) -> float:
        """Share of requests for fallbacks now."""
        return self.moves[-1][1]


def always(ended: str) -> Fault:
    return lambda _now_s: ended


@pytest.mark.parametrize("ended", ["failed", "shed"])
@pytest.mark.parametrize("rate_per_s", [10.0, 40.0])
def test_fallback_takes_over_within_two_seconds(ended: str, rate_per_s: float) -> None:
    world = World(rate_per_s).run(5)
    began_s = world.now_s
    world.run(16, main=always(ended))
    assert world.good_percent(began_s + 2) >= 95
    decided = world.decided.pools["main"]
    assert decided.degradation is not None
    assert world.share() == 1 or decided.serves_percent == 25


@pytest.mark.parametrize("ended", ["failed", "shed"])
def test_pool_returns_after_recovery(ended: str) -> None:
    world = World().run(5).run(16, main=always(ended))
    world.run(60)
    assert world.share() == 0
    assert world.decided.pools["main"].serves_percent == 100


def test_failing_fallback_changes_nothing() -> None:
    world = World().run(5).run(150, main=always("failed"), spare=always("failed"))
    assert len(world.moves) <= 40, "each opening lasts twice as long as the last"
    last = [at_s for at_s, _ in world.moves if at_s > world.now_s - 60]
    assert len(last) <= 8


def test_fallback_that_fails_later_gives_requests_back() -> None:
    world = World().run(5).run(10, main=always("failed"))
    assert world.share() >= 0.75
    began_s = world.now_s
    world.run(20, spare=always("failed"))
    assert world.good_percent(began_s + 3) >= 90


@pytest.mark.parametrize("ended", ["failed", "shed"])
def test_next_fallback_takes_over_from_a_failing_one(ended: str) -> None:
    world = World(fallbacks=("spare", "last")).run(5).run(10, main=always(ended))
    began_s = world.now_s
    world.run(20, main=always(ended), spare=always(ended))
    assert world.good_percent(began_s + 2) >= 95
    world.run(60, main=always(ended))
    assert world.weights["spare"] == sum(world.weights.values()), "the first fallback serves again"


def test_pool_that_serves_again_relieves_failing_fallbacks() -> None:
    world = World(fallbacks=("spare", "last")).run(5).run(10, main=always("failed"))
    began_s = world.now_s
    world.run(20, spare=always("failed"), last=always("failed"))
    assert world.good_percent(began_s + 3) >= 90


def test_one_good_engine_keeps_the_pool() -> None:
    world = World().run(5)
    good = world.fleet.pools["main"][0].id

    def mostly(_now_s: float) -> str:
        return "shed" if world.rng.random() < 0.5 else "good"

    world.run(20, main=mostly)
    assert world.decided.pools["main"].serves_percent == 100
    assert world.decided.engines[good].health.value == "HEALTHY"


def test_shadow_mode_moves_nothing() -> None:
    world = World(breaker={"mode": "shadow"}).run(5).run(10, main=always("failed"))
    assert world.share() == 0


@pytest.mark.parametrize("ended", ["failed", "shed"])
def test_pool_without_traffic_stays_closed(ended: str) -> None:
    world = World(rate_per_s=1.0).run(30).run(3, main=always(ended))
    assert world.share() == 0, "three calls prove nothing"


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(["failed", "shed"]),
    st.sampled_from([5.0, 40.0]),
    st.integers(0, 1000),
)
def test_constant_faults_move_weights_a_bounded_number_of_times(
    main: float, spare: float, ended: str, rate_per_s: float, seed: int
) -> None:
    world = World(rate_per_s, seed)

    def fails(share: float) -> Fault:
        return lambda _now_s: ended if world.rng.random() < share else "good"

    world.run(5)
    began_s = world.now_s
    world.run(60, main=fails(main), spare=fails(spare))
    assert len(world.moves) <= 30
    if main == 1 and spare == 0:
        assert world.good_percent(began_s + 10) >= 90, "good capacity never idles while callers fail"
    if not main:
        assert world.share() == 0
