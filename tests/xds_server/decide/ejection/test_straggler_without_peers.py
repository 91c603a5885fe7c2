"""A slow engine whose peers have no traffic: judged by its own past and by canaries."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.report import CanaryResults, EngineReport, ReportSource, Verdict
from policies.resilience import Straggler
from tests.xds_server.decide.ejection.ejection_simulation import Call, World
from tests.xds_server.decide.ejection.engine_predicates import is_back, is_out
from xds_server.decide.decision_memory import PastSpeed
from xds_server.decide.decisions import Ejector, Health
from xds_server.decide.ejection.past_speed import PastEvidence, next_past_speed, slower_than_before
from xds_server.decide.ejection.slowness import NOT_SLOW, PeerMedians

LEARNED_S = 15.0


def _usual(rng: random.Random) -> float:
    return rng.uniform(0.28, 0.72)


class LocalCallers(World):
    """Callers of zone a stay there while it has an engine in rotation, so other engines are idle."""

    def __init__(self, zones: str = "abc", *, per_s: float = 8.0, seed: int = 1) -> None:
        self.zones, self.per_s = zones, per_s
        super().__init__(zones, seed=seed, service=_usual, resilience={"breaker": {"capacityFloorPercent": 0}})
        self.source = ReportSource.AGENT

    def _arrive(self) -> None:
        healthy = [name for name, one in self.history[-1][1].items() if one.health is Health.HEALTHY]
        local = [name for name in healthy if self.zones[int(name[1:])] == "a"] or healthy
        arrivals = self.per_s * 0.1
        for _ in range(int(arrivals) + (self.rng.random() < arrivals % 1)):
            engine = self.engines[min(local, key=lambda name: len(self.engines[name].calls))]
            engine.calls.append(Call(left_s=self.service(self.rng), began_s=self.now_s, fails=False))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("zones", "per_s"), [("abc", 8.0), ("aabc", 16.0)])
def test_straggler_without_peer_traffic_is_ejected_within_3_s(zones: str, per_s: float, seed: int) -> None:
    world = LocalCallers(zones, per_s=per_s, seed=seed).run(LEARNED_S)
    slow_s = world.now_s
    world.engines["e0"].slower = 10.0
    world.run(20)
    assert world.out() == {"e0"}
    assert world.first_s(slow_s, is_out("e0")) <= 3.0
    assert world.decision("e0").ejector is Ejector.SLOWNESS
    assert any("usually" in one["e0"].reason for _, one in world.history)
    flips = {at_s for at_s, one in world.history if one["e0"].health is not Health.HEALTHY}
    assert len(flips) == round((world.now_s - min(flips)) / 0.1) + 1, "it stays out while it is slow"
    world.engines["e0"].slower = 1.0
    healed_s = world.now_s
    assert world.run(8).first_s(healed_s, is_back("e0")) < 5.0, "after its last slow call"


def test_idle_straggler_is_ejected_by_its_canaries() -> None:
    world = LocalCallers().run(LEARNED_S)
    slow_s = world.now_s
    world.engines["e1"].slower = 10.0
    world.run(10)
    assert world.out() == {"e1"}
    assert world.first_s(slow_s, is_out("e1")) <= 3.0
    assert "canaries take 0.50 s, usually 0.05 s" in world.decision("e1").reason


@pytest.mark.parametrize("lasts_s", [4.0, 20.0])
def test_longer_answers_make_no_straggler_without_peers(lasts_s: float) -> None:
    world = LocalCallers(per_s=4.0).run(LEARNED_S)
    world.service = lambda _rng: lasts_s
    assert world.run(30).out() == set()


def test_burst_makes_no_straggler_without_peers() -> None:
    world = LocalCallers(per_s=2.0).run(LEARNED_S)
    world.per_s = 60.0
    assert world.run(10).out() == set()


def test_idle_peers_with_slow_canaries_acquit_an_engine() -> None:
    world = LocalCallers().run(LEARNED_S)
    for engine in world.engines.values():
        engine.slower = 10.0
    assert world.run(10).out() == set()


def test_straggler_that_looks_hung_for_a_moment_stays_out() -> None:
    world = LocalCallers().run(LEARNED_S)
    world.engines["e0"].slower = 10.0
    world.run(4)
    world.engines["e0"].hung = True
    world.run(2)
    assert world.decision("e0").verdict is Verdict.HUNG
    world.engines["e0"].hung = False
    hung_s = world.now_s
    world.run(10)
    assert world.first_s(hung_s, is_back("e0")) == float("inf")


def test_proved_engine_learns_its_calls_again() -> None:
    """A quick canary after an ejection says that the workload changed: it must not be ejected again for it."""
    world = LocalCallers().run(LEARNED_S)
    before = world.before.ejection.past_speeds
    world.engines["e0"].slower = 10.0
    world.run(4)
    world.engines["e0"].slower = 1.0
    back_s = world.run(6).first_s(0.0, is_back("e0"))
    assert back_s < float("inf")
    after = next(iter(world.before.ejection.past_speeds.values()))
    assert after.finished < next(iter(before.values())).finished


PEERS = PeerMedians(finished_per_work_s=None, service_s=None, tokens_per_s=None, canary_s=0.05, engines=1, heard=3)


def _report(at_s: float, took_s: float, source: ReportSource, in_flight: int = 0) -> EngineReport:
    return EngineReport(
        pool="pool",
        engine="e0",
        verdict=Verdict.READY,
        evidence="",
        observed_at_s=at_s,
        requests_in_flight=in_flight,
        source=source,
        canary=CanaryResults(in_row=1, at_s=at_s, took_s=took_s),
    )


def _after_canaries(
    *times_s: float, source: ReportSource = ReportSource.AGENT, in_flight: Callable[[float], int] = lambda _: 0
) -> tuple[float, str, float | None]:
    """The evidence after 20 usual canaries of 50 ms and these ones, half a second apart."""
    past: PastSpeed | None = None
    seen = PastEvidence(report=None, book=None, slots=8, peers=PEERS, now_s=0.0)
    for place, took_s in enumerate((*[0.05] * 20, *times_s)):
        at_s = 100.0 + place / 2
        seen = replace(seen, report=_report(at_s, took_s, source, in_flight(took_s)), now_s=at_s)
        past = next_past_speed(past, seen, Straggler())
    return slower_than_before(past, seen, Straggler())


def test_three_slow_canaries_in_a_row_are_evidence() -> None:
    assert _after_canaries(0.5, 0.5) == NOT_SLOW
    assert _after_canaries(0.5, 0.5, 0.05, 0.5) == NOT_SLOW
    times, why, since_s = _after_canaries(0.5, 0.5, 0.5)
    assert times == pytest.approx(10.0)
    assert why == "canaries take 0.50 s, usually 0.05 s (limit: 3 times slower)"
    assert since_s == pytest.approx(100.0 + 20 / 2 - 0.5)


def test_canary_behind_other_requests_does_not_count() -> None:
    assert _after_canaries(0.5, 0.5, 0.5, in_flight=lambda took_s: 2 if took_s > 0.1 else 0) == NOT_SLOW


def test_longer_network_path_of_the_prober_does_not_count() -> None:
    assert _after_canaries(0.25, 0.25, 0.25, source=ReportSource.PROBE) == NOT_SLOW
    assert _after_canaries(0.25, 0.25, 0.25)[0] > 0


def test_small_pool_has_nothing_to_move_the_work_to() -> None:
    world = LocalCallers("aa").run(LEARNED_S)
    world.engines["e0"].slower = 10.0
    assert world.run(10).out() == set()
