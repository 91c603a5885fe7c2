"""Retried statuses: failing engines are distinguished from requests that fail everywhere."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.resilience import ENGINE_FAILED, REPORTED_BEFORE_WORK, ResilienceSpec
from xds_server.decide.decision_memory import RetryMemory
from xds_server.decide.decisions import EngineDecision, Health, RetryDecision
from xds_server.decide.routing.retry_statuses import HOLD_S, ON_INTERVAL_S, retries_due_s, retry_statuses
from xds_server.model.fleet import EngineId
from xds_server.model.pool_traffic import STALE_S, EngineTraffic, PoolTraffic

TRIES = 4
SEEDS = st.integers(0, 2**20)
Fault = Callable[[int, float], bool]
"""Whether a call to the engine of this number at this time fails, whatever is asked."""


def never(_engine: int, _now_s: float) -> bool:
    return False


@dataclass
class Pool:
    """Engines and requests, some failing everywhere; retried as decided."""

    engines: int
    per_s: float = 12.0
    """Requests per second and engine."""
    seed: int = 0
    spec: ResilienceSpec = field(default_factory=ResilienceSpec)
    step_s: float = 0.25
    now_s: float = 100.0
    out: frozenset[int] = frozenset()
    memory: RetryMemory | None = None
    moves: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.ok, self.failed = [0] * self.engines, [0] * self.engines
        self.look()

    def run(self, for_s: float, *, broken: Fault = never, bad: float = 0.0, at_s: tuple[float, ...] = ()) -> None:
        """``bad``: share of requests that fail everywhere; one more arrives at each of ``at_s``."""
        due, end_s = sorted(self.now_s + each for each in at_s), self.now_s + for_s
        while self.now_s < end_s:
            for _ in range(round(self.per_s * self.engines * self.step_s)):
                self._ask(broken, bad=self.rng.random() < bad)
            while due and due[0] <= self.now_s:
                due.pop(0)
                self._ask(broken, bad=True)
            self.now_s += self.step_s
            self.look()

    def _ask(self, broken: Fault, *, bad: bool) -> None:
        there = [one for one in range(self.engines) if one not in self.out]
        again = self.memory is None or 500 in self.decision.statuses
        for one in self.rng.sample(there, min(TRIES if again else 1, len(there))):
            if not (bad or broken(one, self.now_s)):
                self.ok[one] += 1
                return
            self.failed[one] += 1

    def look(self, *, heard: bool = True) -> RetryDecision:
        traffic = PoolTraffic(
            engines={
                f"e{one}": EngineTraffic(succeeded=self.ok[one], failed=self.failed[one], in_flight=1)
                for one in range(self.engines)
            },
            heard_at_s=self.now_s if heard else self.now_s - STALE_S - 1,
        )
        decisions = {
            EngineId(pool="p", engine=f"e{one}"): EngineDecision(
                health=Health.UNHEALTHY if one in self.out else Health.HEALTHY, reason="", since_s=0.0
            )
            for one in range(self.engines)
        }
        before = self.memory
        self.memory = retry_statuses(self.spec, before, traffic=traffic, engines=decisions, now_s=self.now_s)
        if before is not None and before.decided.statuses != self.memory.decided.statuses:
            self.moves.append(self.now_s)
        return self.memory.decided

    @property
    def decision(self) -> RetryDecision:
        assert self.memory is not None
        return self.memory.decided

    @property
    def retried(self) -> tuple[int, ...]:
        return self.decision.statuses


def test_retry_on_500_at_start_and_without_telemetry() -> None:
    assert (
        retry_statuses(ResilienceSpec(), None, traffic=None, engines={}, now_s=0.0).decided.statuses
        == ENGINE_FAILED
    )
    assert ENGINE_FAILED == (500, 503)
    pool = Pool(6)
    pool.run(10, bad=1.0)
    assert pool.retried == REPORTED_BEFORE_WORK == (503,)
    pool.now_s += HOLD_S + 1
    assert pool.look(heard=False).statuses == ENGINE_FAILED


@pytest.mark.parametrize("statuses", [[503], [500, 502], []])
def test_retry_statuses_follow_the_policy(statuses: list[int]) -> None:
    pool = Pool(6, spec=ResilienceSpec.model_validate({"retries": {"statuses": statuses}}))
    pool.run(20, bad=1.0)
    assert pool.retried == tuple(statuses)
    assert pool.moves == []


def test_shadow_mode_keeps_retry_on_500() -> None:
    pool = Pool(6, spec=ResilienceSpec.model_validate({"mode": "shadow"}))
    pool.run(20, bad=1.0)
    assert pool.decision is not None
    assert pool.decision.shadow is not None
    assert (pool.retried, pool.decision.shadow.statuses) == (ENGINE_FAILED, REPORTED_BEFORE_WORK)


@settings(max_examples=15)
@given(st.integers(2, 12), st.data(), SEEDS, st.sampled_from([2.0, 12.0, 30.0]), st.sampled_from([0.0, 0.002]))
def test_broken_engines_never_disable_retry_on_500(
    engines: int, data: st.DataObject, seed: int, per_s: float, noise: float
) -> None:
    broken = data.draw(st.integers(0, engines // 2), label="broken")
    pool, chance = Pool(engines, per_s=per_s, seed=seed), random.Random(seed)
    pool.run(3, broken=lambda *_: chance.random() < noise)
    pool.run(3, broken=lambda one, _: one < broken or chance.random() < noise)
    pool.out = frozenset(range(broken)) if data.draw(st.booleans(), label="ejected") else frozenset()
    pool.run(10, broken=lambda one, _: one < broken or chance.random() < noise)
    pool.out = frozenset()
    pool.run(5, broken=lambda *_: chance.random() < noise)
    assert pool.moves == []


@settings(max_examples=15)
@given(st.integers(3, 8), st.floats(0.05, 1.0), SEEDS)
def test_poison_requests_disable_retry_on_500(engines: int, bad: float, seed: int) -> None:
    pool = Pool(engines, per_s=40.0, seed=seed)
    pool.run(10)
    pool.run(8, bad=bad)
    assert pool.retried == REPORTED_BEFORE_WORK
    pool.run(HOLD_S + 5, bad=bad)
    assert len(pool.moves) == 1
    ended_s = pool.now_s
    pool.run(HOLD_S - 5)
    assert pool.retried == REPORTED_BEFORE_WORK
    pool.run(10)
    assert pool.retried == ENGINE_FAILED
    # Nothing was off by chance: the last sign is at the end of them, or shortly before.
    assert pool.moves[1] >= ended_s + HOLD_S - 5


def test_low_rates_delay_disabling_retry_on_500() -> None:
    pool = Pool(6, per_s=2.0)
    pool.run(10)
    pool.run(40, bad=0.1)
    assert pool.retried == REPORTED_BEFORE_WORK


@settings(max_examples=15)
@given(st.integers(3, 12), st.sampled_from([1.0, 5.0, 20.0]), SEEDS)
def test_rare_bad_requests_keep_retry_on_500(engines: int, per_s: float, seed: int) -> None:
    pool = Pool(engines, per_s=per_s, seed=seed)
    pool.run(90, at_s=tuple(11.0 * each for each in range(1, 8)))
    assert pool.moves == []


@settings(max_examples=15)
@given(st.integers(3, 10), st.floats(0.0, 1.0), SEEDS)
def test_retry_on_500_does_not_flap(engines: int, hostile: float, seed: int) -> None:
    pool, chance = Pool(engines, seed=seed), random.Random(seed)
    for _ in range(12):
        spell_s = chance.choice([0.5, 2.0, 12.0, 31.0])
        pool.run(spell_s, bad=chance.choice([0.0, 0.05, 1.0]) if chance.random() < hostile else 0.0)
    assert all(later - earlier >= ON_INTERVAL_S for earlier, later in pairwise(pool.moves))
    # Off is never for less than the hold; the moves begin with one to off.
    assert all(on - off >= HOLD_S for off, on in zip(pool.moves[::2], pool.moves[1::2], strict=False))


def test_rolling_restart_keeps_retry_on_500() -> None:
    pool = Pool(8)
    pool.run(10)
    start_s = pool.now_s
    pool.run(16, broken=lambda one, now_s: 1.5 * one <= now_s - start_s < 1.5 * one + 1)
    assert pool.moves == []


def test_slow_engines_without_answers_keep_retry_on_500() -> None:
    pool = Pool(6)
    pool.failed = [20, 20, 20, 0, 0, 0]
    assert pool.look().statuses == ENGINE_FAILED
    pool.failed = [20] * 6
    pool.now_s += 1
    assert pool.look().statuses == REPORTED_BEFORE_WORK


def test_reset_counters_are_not_failures() -> None:
    pool = Pool(4)
    pool.run(10, bad=0.0)
    pool.ok, pool.failed = [5] * 4, [0] * 4
    pool.now_s += 1
    assert pool.look().statuses == ENGINE_FAILED
    pool.run(10, bad=0.5)
    assert pool.retried == REPORTED_BEFORE_WORK


def test_retry_on_500_returns_after_a_cooldown() -> None:
    assert retries_due_s(Pool(3).look(), 100.0) == math.inf
    pool = Pool(4)
    pool.run(5, bad=1.0)
    assert pool.decision is not None
    assert pool.decision.sign_at_s is not None
    due_s = retries_due_s(pool.decision, pool.now_s)
    assert due_s == pool.decision.sign_at_s + HOLD_S
    assert retries_due_s(replace(pool.decision, shadow=pool.decision), pool.now_s) == due_s
    assert "engines with traffic fail at the same time" in pool.decision.reason
