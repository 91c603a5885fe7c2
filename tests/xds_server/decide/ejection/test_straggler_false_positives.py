"""Equal engines with unequal calls: few callers or mixed lengths make no straggler."""

import random
from collections.abc import Callable

import pytest

from policies.resilience import Straggler
from tests.xds_server.decide.ejection.ejection_simulation import Call, World
from xds_server.decide.decision_memory import WorkSample
from xds_server.decide.decisions import Ejector, Health
from xds_server.decide.ejection import past_speed, straggler
from xds_server.decide.ejection.slowness import PeerMedians, slowness
from xds_server.model.pool_traffic import EngineTraffic

CHANGE_S = 10.0


def _streams_then_short(_rng: random.Random, passed_s: float) -> float:
    return 8.0 if passed_s < CHANGE_S else 0.25


def _uneven_streams_then_short(rng: random.Random, passed_s: float) -> float:
    return rng.uniform(4, 8) if passed_s < CHANGE_S else 0.25


def _short_then_streams(_rng: random.Random, passed_s: float) -> float:
    return 0.25 if passed_s < CHANGE_S else 8.0


def _half_streams(rng: random.Random, _passed_s: float) -> float:
    return 8.0 if rng.random() < 0.5 else 0.25


def _usual(rng: random.Random, _passed_s: float) -> float:
    return rng.uniform(0.28, 0.72)


class Callers(World):
    """The pool with this many closed-loop callers."""

    def __init__(
        self, zones: str, callers: int, lasts: Callable[[random.Random, float], float], seed: int
    ) -> None:
        self.callers, self.lasts, self.began_s = callers, lasts, 100.0
        super().__init__(zones, seed=seed)

    def _arrive(self) -> None:
        listed = [name for name, one in self.history[-1][1].items() if one.health is Health.HEALTHY]
        for _ in range(self.callers - sum(len(one.calls) for one in self.engines.values())):
            picks = self.rng.sample(listed, min(3, len(listed)))
            engine = self.engines[min(picks, key=lambda name: len(self.engines[name].calls))]
            lasts_s = self.lasts(self.rng, self.now_s - self.began_s)
            engine.calls.append(Call(left_s=lasts_s, began_s=self.now_s, fails=False))


@pytest.fixture
def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine reports a token rate, to compare with its peers' or with its own past."""
    monkeypatch.setattr(straggler, "tokens_per_running", lambda *_, **__: None)
    monkeypatch.setattr(past_speed, "running_requests", lambda *_: None)


@pytest.mark.usefixtures("no_tokens")
@pytest.mark.parametrize("callers", [2, 4, 6, 8, 12, 16])
@pytest.mark.parametrize(
    "lasts", [_streams_then_short, _uneven_streams_then_short, _short_then_streams, _half_streams]
)
def test_mixed_answer_lengths_make_no_straggler(
    lasts: Callable[[random.Random, float], float], callers: int
) -> None:
    for seed in range(3):
        assert Callers("aaaa", callers, lasts, seed).run(30).out() == set()


@pytest.mark.usefixtures("no_tokens")
@pytest.mark.parametrize("callers", [8, 16, 32])
def test_straggler_is_detected_by_its_calls_alone(callers: int) -> None:
    world = Callers("aaaa", callers, _usual, seed=1).run(8)
    slow_s = world.now_s
    world.engines["e0"].slower = 10.0
    assert world.run(30).out(slow_s) == {"e0"}
    reasons = {decided["e0"].reason for _, decided in world.history if decided["e0"].ejector is Ejector.SLOWNESS}
    assert reasons
    for reason in reasons:
        assert "slowness: finished " in reason
        assert "peers would have finished " in reason
        assert "tokens" not in reason


@pytest.mark.parametrize("callers", [16, 32])
def test_straggler_is_detected_in_seconds_by_its_token_rate(callers: int) -> None:
    world = Callers("aaaa", callers, _usual, seed=1).run(8)
    slow_s = world.now_s
    world.engines["e0"].slower = 4.0
    assert world.run(6).out(slow_s) == {"e0"}


def test_one_long_answer_makes_no_straggler() -> None:
    cohort = PeerMedians(finished_per_work_s=4.0, service_s=0.25, tokens_per_s=None, canary_s=None, engines=4)
    seen = EngineTraffic(done_per_s=4.0, busy=4.9, service_s=1.22, in_flight=2)
    one_long = WorkSample(at_s=2.0, began_s=0.0, done=0, finished=8, work_s=3.5, expected=14.0, in_use=2)
    all_long = WorkSample(at_s=2.0, began_s=0.0, done=0, finished=8, work_s=9.8, expected=39.0, in_use=5)
    assert slowness(one_long, seen, None, cohort, Straggler())[0] == 0
    assert "calls take" in slowness(all_long, seen, None, cohort, Straggler())[1]


def test_present_peer_rate_does_not_apply_to_the_past() -> None:
    cohort = PeerMedians(finished_per_work_s=4.0, service_s=None, tokens_per_s=None, canary_s=None, engines=4)
    book = WorkSample(at_s=20.0, began_s=0.0, done=0, finished=12, work_s=24.0, expected=13.0, in_use=2)
    assert slowness(book, None, None, cohort, Straggler())[0] == 0
