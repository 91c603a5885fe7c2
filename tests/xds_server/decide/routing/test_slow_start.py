"""Slow start: who ramps, how fast, and that a ramp always ends."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.resilience import ResilienceSpec
from xds_server.decide.decision_memory import NO_SLOW_START, SlowStartMemory
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.decide.routing.key_hold import NO_HOLD, KeyHold
from xds_server.decide.routing.slow_start import (
    HELD_PERCENT,
    MIN_STEP_S,
    PROVEN_CALLS,
    STEPS,
    share_ramps,
    slow_start,
    slow_start_due_s,
)
from xds_server.model.fleet import EngineId
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic

IN, OUT, LEAVING = Health.HEALTHY, Health.UNHEALTHY, Health.DRAINING
WINDOW_S = 40.0
STEP_S = WINDOW_S / STEPS


def key(name: str) -> EngineId:
    return EngineId("pool", name)


@dataclass
class Pool:
    """Engines by name; rounds advance time."""

    healths: dict[str, Health]
    policy: Mapping[str, object] = field(default_factory=lambda: {"slowStart": {"window": f"{WINDOW_S:g}s"}})
    calls: dict[str, EngineTraffic] = field(default_factory=dict)
    memory: SlowStartMemory = NO_SLOW_START
    known: Mapping[EngineId, EngineDecision] = field(default_factory=dict)
    now_s: float = 1000.0
    hold: KeyHold = NO_HOLD
    percents: dict[str, float] = field(default_factory=dict)

    @property
    def resilience(self) -> ResilienceSpec:
        return ResilienceSpec.model_validate(self.policy)

    def decide(self, passed_s: float = 0.0) -> dict[str, float]:
        """The percent of its share of each engine in slow start, after one round."""
        self.now_s += passed_s
        decisions = {
            key(name): EngineDecision(
                health=health, reason="", since_s=0, traffic_percent=self.percents.get(name, 100.0)
            )
            for name, health in self.healths.items()
        }
        self.memory = slow_start(
            self.resilience,
            decisions,
            PoolTraffic(engines=self.calls),
            known=self.known,
            before=self.memory,
            now_s=self.now_s,
            hold=self.hold,
        )
        self.known = decisions
        ramps = share_ramps(self.memory, self.resilience.slow_start)
        return {name.engine: ramp.percent for name, ramp in ramps.items()}

    def full_in_s(self, name: str) -> float:
        return share_ramps(self.memory, self.resilience.slow_start)[key(name)].full_at_s - self.now_s


def returned(**policy: object) -> Pool:
    """A pool whose engine e0 has just returned."""
    pool = Pool({"e0": OUT, "e1": IN})
    pool.policy = {**pool.policy, **policy}
    pool.decide()
    pool.healths["e0"] = IN
    assert pool.decide(1.0) == {"e0": 10.0}
    return pool


def test_engines_of_a_new_pool_do_not_ramp() -> None:
    assert Pool({"e0": IN, "e1": IN}).decide() == {}


@pytest.mark.parametrize("health", [OUT, LEAVING])
def test_returned_engine_ramps_up_over_the_window(health: Health) -> None:
    pool = Pool({"e0": health, "e1": IN})
    pool.decide()
    pool.healths["e0"] = IN
    assert pool.decide() == {"e0": 10.0}
    assert pool.full_in_s("e0") == WINDOW_S
    assert pool.decide(WINDOW_S / 2) == {"e0": 50.0}
    assert pool.full_in_s("e0") == WINDOW_S / 2
    assert pool.decide(WINDOW_S / 2) == {}


def test_joining_engine_ramps_up() -> None:
    pool = Pool({"e0": IN})
    pool.decide()
    pool.healths["e1"] = IN
    assert pool.decide() == {"e1": 10.0}


def test_engine_that_leaves_in_its_ramp_starts_again() -> None:
    pool = returned()
    assert pool.decide(20.0)["e0"] > 40
    pool.healths["e0"] = OUT
    assert pool.decide() == {}
    pool.healths["e0"] = IN
    assert pool.decide(1.0) == {"e0": 10.0}


def test_parts_move_in_steps_that_engines_share() -> None:
    pool = Pool({"e0": OUT, "e1": OUT, "e2": IN})
    pool.decide()
    pool.healths["e0"] = IN
    pool.decide(0.3)
    pool.healths["e1"] = IN
    pool.decide(0.9)
    moves = set()
    before = pool.decide()
    for _ in range(200):
        now = pool.decide(0.1)
        if now != before:
            moves.add(round(pool.now_s / STEP_S, 3) % 1)
        before = now
    assert moves <= {0.0, 0.05}, "each at the first round of a step"
    assert len({round(percent, 1) for percent in before.values()}) == 2


def test_good_answers_double_the_speed() -> None:
    pool = returned()
    pool.calls["e0"] = EngineTraffic(succeeded=PROVEN_CALLS)
    pool.decide(STEP_S)
    left_s = pool.full_in_s("e0")
    assert left_s == pytest.approx((WINDOW_S - STEP_S) / 2, abs=STEP_S)
    assert pool.decide(left_s + STEP_S) == {}


@pytest.mark.parametrize(("succeeded", "failed", "restarts"), [(0, 1, False), (0, 2, True), (50, 2, False)])
def test_failures_restart_the_ramp(succeeded: int, failed: int, restarts: bool) -> None:
    pool = returned()
    pool.decide(20.0)
    pool.calls["e0"] = EngineTraffic(succeeded=succeeded, failed=failed)
    now = pool.decide(0.1)["e0"]
    assert (now == 10.0) is restarts
    assert (pool.decide(STEP_S)["e0"] > 40) is not restarts


def test_failures_before_the_return_do_not_count() -> None:
    pool = Pool({"e0": OUT, "e1": IN}, calls={"e0": EngineTraffic(failed=20)})
    pool.decide()
    pool.healths["e0"] = IN
    pool.decide()
    assert pool.decide(WINDOW_S / 2) == {"e0": 50.0}
    pool.calls["e0"] = EngineTraffic()
    assert pool.decide(0.1)["e0"] == 50.0, "nor does a reset of the counters"


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"slowStart": {"window": "40s", "minWeightPercent": 100}},
        {"slowStart": {"window": "40s"}, "mode": "shadow"},
    ],
)
def test_no_ramp_without_window_or_in_shadow_mode(policy: Mapping[str, object]) -> None:
    pool = Pool({"e0": OUT, "e1": IN}, policy=policy)
    pool.decide()
    pool.healths["e0"] = IN
    assert pool.decide() == {}
    assert pool.memory is NO_SLOW_START


def test_round_without_ramp_is_never_due() -> None:
    pool = Pool({"e0": IN})
    pool.decide()
    assert slow_start_due_s(pool.memory, pool.resilience.slow_start, pool.now_s) == math.inf


@given(
    window_s=st.floats(0.001, 3600),
    least=st.floats(0, 100),
    began_s=st.floats(0, 1e7),
    answers=st.integers(0, 50),
)
def test_ramp_grows_and_ends_by_its_own_rounds(
    window_s: float, least: float, began_s: float, answers: int
) -> None:
    pool = Pool(
        {"e0": OUT, "e1": IN},
        policy={"slowStart": {"window": f"{window_s:.6f}s", "minWeightPercent": least}},
        calls={"e0": EngineTraffic(succeeded=answers)},
        now_s=began_s,
    )
    pool.decide()
    pool.healths["e0"] = IN
    pool.calls["e0"] = EngineTraffic(succeeded=2 * answers)
    last, rounds = pool.decide().get("e0", 100.0), 0
    while pool.memory.ramps:
        due_s = slow_start_due_s(pool.memory, pool.resilience.slow_start, pool.now_s)
        assert due_s > pool.now_s, "or the round would not come"
        now = pool.decide(due_s - pool.now_s).get("e0", 100.0)
        elapsed_s = pool.now_s - began_s
        assert last <= now <= max(least + 0.1, 100 * 2 * elapsed_s / window_s + 0.1)
        last, rounds = now, rounds + 1
        assert rounds <= STEPS + 2
    assert pool.now_s - began_s <= window_s + max(MIN_STEP_S, window_s / STEPS) + 1e-3


HOLD_S = 30.0
NO_RAMP: Mapping[str, object] = {"slowStart": {"window": "0s"}}


def held(**more: object) -> Pool:
    """A pool that holds back the keys of its engine e0, which has just returned."""
    pool = Pool({"e0": OUT, "e1": IN}, hold=KeyHold(after_s=HOLD_S), **{"policy": NO_RAMP, **more})  # type: ignore[arg-type]
    pool.decide()
    pool.healths["e0"] = IN
    assert pool.decide(1.0) == {"e0": HELD_PERCENT}
    return pool


def test_returned_engine_gets_its_keys_after_the_time_that_it_is_healthy() -> None:
    pool = held()
    assert pool.full_in_s("e0") == HOLD_S
    assert pool.decide(HOLD_S - MIN_STEP_S) == {"e0": HELD_PERCENT}
    assert pool.decide(2 * MIN_STEP_S) == {}


def test_joining_engine_is_not_held() -> None:
    pool = Pool({"e0": IN}, hold=KeyHold(after_s=HOLD_S), policy=NO_RAMP)
    pool.decide()
    pool.healths["e1"] = IN
    assert pool.decide() == {}


def test_slow_start_follows_the_hold() -> None:
    pool = held(policy={"slowStart": {"window": f"{WINDOW_S:g}s"}})
    assert pool.full_in_s("e0") == HOLD_S + WINDOW_S
    assert pool.decide(HOLD_S + WINDOW_S / 2)["e0"] == pytest.approx(50.0, abs=100 / STEPS)
    assert pool.decide(WINDOW_S / 2 + STEP_S) == {}


@pytest.mark.parametrize("trouble", ["leaves", "fails", "on trial"])
def test_trouble_starts_the_hold_again(trouble: str) -> None:
    pool = held()
    pool.decide(HOLD_S - 1.0)
    if trouble == "leaves":
        pool.healths["e0"] = OUT
    elif trouble == "fails":
        pool.calls["e0"] = EngineTraffic(failed=2)
    else:
        pool.percents["e0"] = 25.0
    pool.decide(0.5)
    pool.healths["e0"] = IN
    pool.percents.clear()
    assert pool.decide(0.1) == {"e0": HELD_PERCENT}
    assert pool.decide(HOLD_S - 1.0) == {"e0": HELD_PERCENT}
    assert pool.decide(2.0) == {}


def test_released_engine_has_its_keys_at_once_and_keeps_them() -> None:
    pool = held()
    pool.hold = KeyHold(after_s=HOLD_S, released=frozenset({key("e0")}))
    assert pool.decide(1.0) == {}
    pool.hold = KeyHold(after_s=HOLD_S)
    assert pool.decide(1.0) == {}


@pytest.mark.parametrize("after_s", [0.0, 5.0])
def test_shorter_time_in_the_policy_holds_at_once(after_s: float) -> None:
    pool = held()
    pool.hold = KeyHold(after_s=after_s)
    assert (pool.decide() == {}) is not after_s
    assert pool.decide(5.0 + MIN_STEP_S) == {}


def test_shadow_mode_holds_nothing() -> None:
    pool = Pool({"e0": OUT, "e1": IN}, hold=KeyHold(after_s=HOLD_S), policy={"mode": "shadow"})
    pool.decide()
    pool.healths["e0"] = IN
    assert pool.decide() == {}


@given(
    hold_s=st.floats(0.001, 7200),
    window_s=st.one_of(st.just(0.0), st.floats(0.001, 3600)),
    began_s=st.floats(0, 1e7),
    answers=st.integers(0, 50),
)
def test_held_engine_gets_its_keys_by_its_own_rounds_and_never_early(
    hold_s: float, window_s: float, began_s: float, answers: int
) -> None:
    pool = Pool(
        {"e0": OUT, "e1": IN},
        policy={"slowStart": {"window": f"{window_s:.6f}s"}},
        calls={"e0": EngineTraffic()},
        hold=KeyHold(after_s=hold_s),
        now_s=began_s,
    )
    pool.decide()
    pool.healths["e0"] = IN
    percent, rounds = pool.decide()["e0"], 0
    pool.calls["e0"] = EngineTraffic(succeeded=answers)
    step_s = max(MIN_STEP_S, window_s / STEPS)
    while pool.memory.ramps:
        due_s = slow_start_due_s(pool.memory, pool.resilience.slow_start, pool.now_s)
        assert due_s > pool.now_s, "or the round would not come"
        now = pool.decide(due_s - pool.now_s).get("e0", 100.0)
        assert now >= percent
        assert now == HELD_PERCENT or pool.now_s - began_s >= hold_s - 1e-3
        percent, rounds = now, rounds + 1
        assert rounds <= hold_s / step_s + STEPS + 3
    assert pool.now_s - began_s <= hold_s + window_s + step_s + 1e-3
