"""Soft evidence: failing or slow engines are ejected while they can be spared, and return."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import EngineReport, ReportSource, Verdict
from policies.model import PolicySet
from policies.resilience import Straggler
from tests.xds_server.decide.ejection.ejection_simulation import World, key, pool
from tests.xds_server.decide.ejection.engine_predicates import IN, is_back, is_in, is_out
from xds_server.decide.decision_memory import StragglerState, WorkSample
from xds_server.decide.decisions import Ejector
from xds_server.decide.ejection.circuit_breaker import proofs_needed
from xds_server.decide.ejection.slowness import PeerMedians, slowness
from xds_server.decide.ejection.straggler import StragglerCandidate, StragglerRound, straggler_states
from xds_server.model.fleet import declared

# -- the breaker ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_circuit_breaker_ejects_and_readmits_half_a_pool_quickly(seed: int) -> None:
    world = World(seed=seed).run(8)
    broken, began_s = [f"e{place}" for place in range(4)], world.now_s
    for engine in broken:
        world.engines[engine].fails = 1.0
    world.run(19)
    assert world.out() == set(broken)
    # The first calls that meet the fault fail 0.5 s after it began.
    assert max(world.first_s(began_s, is_out(engine)) for engine in broken) < 1.2
    assert world.decision("e0").ejector in {Ejector.ERRORS, Ejector.VERDICT}
    healed_s = world.now_s
    for engine in broken:
        world.engines[engine].fails = 0.0
    world.run(8)
    assert max(world.first_s(healed_s, is_in(engine)) for engine in broken) < 0.7
    assert max(world.first_s(healed_s, is_back(engine)) for engine in broken) < 1.6
    assert world.out(healed_s + 2) == set()


@pytest.mark.parametrize("seed", range(4))
def test_open_circuit_breaker_does_not_flap(seed: int) -> None:
    world = World(seed=seed).run(4)
    world.engines["e0"].fails = 0.6
    began_s = world.now_s
    world.run(120)
    assert world.out() == {"e0"}
    inside = [one["e0"].health is IN for at_s, one in world.history if at_s > began_s + 20]
    assert sum(inside) < 0.1 * len(inside)
    assert sum(now and not before for before, now in pairwise(inside)) <= 5


def test_canary_successes_needed_for_half_open_back_off_exponentially() -> None:
    assert [proofs_needed(opens) for opens in (1, 2, 3, 9, 99)] == [1, 2, 4, 64, 64]


def test_failures_before_ejection_do_not_reopen_the_circuit_breaker() -> None:
    world = World().run(4)
    world.engines["e0"].fails = 1.0
    world.run(3)
    world.engines["e0"].fails = 0.0
    healed_s = world.now_s
    world.run(3)
    assert world.engines["e0"].ended.maxlen == 25
    assert is_back("e0")(world.history[-1][1])
    assert world.out(healed_s + 1) == set()


def test_open_circuit_breaker_expires_without_telemetry() -> None:
    world = World(resilience={"breaker": {"cooldown": "5s"}}).run(4)
    world.engines["e0"].fails = 1.0
    world.probing = False
    world.run(2)
    assert world.decision("e0").ejector is Ejector.ERRORS
    until_s = world.decision("e0").until_s
    assert until_s is not None
    world.telemetry = False
    lost_s = world.now_s
    for engine in world.engines.values():
        engine.fails = 1.0
    world.run(30)
    assert world.out(lost_s) == {"e0"}
    assert world.out(until_s + 0.2) == set()
    assert world.letters() == "H" * 8


def test_consecutive_failures_open_the_circuit_breaker() -> None:
    world = World(resilience={"breaker": {"minCalls": 25, "windowCalls": 25}})
    world.probing = False
    world.engines["e0"].fails = 1.0
    world.run(1.2)
    assert "calls in a row failed" in world.decision("e0").reason


def test_stale_telemetry_opens_no_circuit_breaker() -> None:
    world = World().run(2)
    world.engines["e0"].fails = 1.0
    world.probing = False
    world.run(0.3)
    told = world.traffic()
    world.traffic = lambda: replace(  # type: ignore[method-assign]
        told,
        engines={
            **told.engines,
            "e0": replace(told.engines["e0"], failures_in_a_row=9, failed=99, window_failures=9),
        },
    )
    world.now_s += 5.0
    world.decide()
    assert world.letters() == "H" * 8


def test_disabled_circuit_breaker_ejects_no_engine() -> None:
    world = World(resilience={"breaker": {"errorRatePercent": 0, "consecutiveErrors": 0}})
    world.probing = False
    world.engines["e0"].fails = 1.0
    assert world.run(5).out() == set()


# -- stragglers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_straggler_ejection_and_readmission(seed: int) -> None:
    world = World(seed=seed).run(8)
    began_s = world.now_s
    for engine in ("e0", "e1"):
        world.engines[engine].slower = 10.0
    world.run(19)
    assert world.out() == {"e0", "e1"}
    for engine in ("e0", "e1"):
        assert world.first_s(began_s, is_out(engine)) < 2.0
        assert world.decision(engine).ejector is Ejector.SLOWNESS
        assert "times slower)" in world.decision(engine).reason
        world.engines[engine].slower = 1.0
    healed_s = world.now_s
    world.run(8)
    assert max(world.first_s(healed_s, is_back(engine)) for engine in ("e0", "e1")) < 1.5
    assert world.out(healed_s + 2) == set()


@pytest.mark.parametrize("seed", range(3))
def test_pool_wide_slowness_makes_no_straggler(seed: int) -> None:
    mixed = World(seed=seed, service=lambda rng: 4.0 if rng.random() < 0.1 else 0.2).run(40)
    assert mixed.out() == set()
    together = World(seed=seed).run(5)
    for engine in together.engines.values():
        engine.slower = 10.0
    assert together.run(10).out() == set()


def test_few_calls_need_more_evidence_to_open_the_circuit_breaker() -> None:
    cohort = PeerMedians(finished_per_work_s=2.0, service_s=None, tokens_per_s=None, canary_s=None, engines=8)

    def found(finished: int, work_s: float) -> bool:
        expected = 2.0 * work_s
        book = WorkSample(
            at_s=1.0, began_s=0.0, done=0, finished=finished, work_s=work_s, expected=expected, in_use=8
        )
        return slowness(book, None, None, cohort, Straggler())[0] > 0

    assert not found(0, 3.0), "six would have been expected"
    assert not found(3, 5.0), "three of ten may be chance"
    assert found(0, 20.0)


_FLEET = {
    one.id: one
    for one in declared(PolicySet(pools={"pool": pool("aaaa")}, routes={}, policies={}, effective={})).pools[
        "pool"
    ]
}


def _candidate(name: str, tokens_per_s: float, running: int, at_s: float) -> StragglerCandidate:
    report = EngineReport(
        pool="pool",
        engine=name,
        verdict=Verdict.BUSY,
        evidence="simulated",
        observed_at_s=at_s,
        sequence=int(10 * at_s),
        boot_id="1",
        requests_in_flight=running,
        requests_waiting=0,
        source=ReportSource.AGENT,
        tokens_per_s=tokens_per_s,
    )
    engine = replace(_FLEET[key(name)], report=report, received_at_s=at_s)
    return StragglerCandidate(
        engine=engine, traffic=None, compared=name != "e0", settled=False, hung=False, kept_out=False
    )


@settings(max_examples=200, deadline=None)
@given(
    running=st.lists(st.integers(0, 8), min_size=1, max_size=12),
    slower=st.floats(3.0, 20.0),
    prompts=st.floats(1.0, 1.9),
)
def test_draining_straggler_is_as_slow_as_before(running: list[int], slower: float, prompts: float) -> None:
    """Its requests end between two reports: what they made is not the rate of the few that are left."""
    policy, ran = Straggler(), 8
    state = StragglerState(ejected=True, ejections=1, since_s=1.0, until_s=11.0, times=slower, running=ran)
    now = StragglerRound(states={key("e0"): state}, past={})
    for place, left in enumerate(sorted(running, reverse=True)):
        at_s = 2.0 + 0.5 * place
        drained = _candidate("e0", prompts * 30.0 * ran / slower, left, at_s)
        peers = [_candidate(f"e{peer}", 8 * 30.0, 8, at_s) for peer in range(1, 4)]
        now = straggler_states([drained, *peers], now, policy, at_s)
        assert now.states[key("e0")].ejected, (at_s, now)
        ran = left


def test_outlier_detection_needs_enough_peers() -> None:
    world = World("aa").run(4)
    world.engines["e0"].slower = 10.0
    assert world.run(10).out() == set()
