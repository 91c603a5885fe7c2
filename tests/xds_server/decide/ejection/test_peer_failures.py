"""An engine's failures compared with its peers': its own fault, or everywhere."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.resilience import Breaker
from tests.xds_server.decide.ejection.ejection_simulation import World
from xds_server.decide.decision_memory import BreakerPhase
from xds_server.decide.decisions import Ejector
from xds_server.decide.ejection import circuit_breaker
from xds_server.decide.ejection.circuit_breaker import BreakerInputs
from xds_server.decide.ejection.peer_failures import FailureCount, beyond_chance, peer_failures, worst_run
from xds_server.model.pool_traffic import EngineTraffic

CLEAN = EngineTraffic(window_calls=25, succeeded=25)


def ended(outcomes: list[bool]) -> EngineTraffic:
    """Traffic of an engine with these newest calls, oldest first; True: failed."""
    in_row = 0
    for failed in reversed(outcomes):
        if not failed:
            break
        in_row += 1
    return EngineTraffic(
        window_calls=len(outcomes),
        window_failures=sum(outcomes),
        failures_in_a_row=in_row,
        newest_failed=sum(failed << age for age, failed in enumerate(reversed(outcomes))),
        succeeded=len(outcomes) - sum(outcomes),
        failed=sum(outcomes),
    )


def opens(engines: dict[str, EngineTraffic], name: str = "e0", **policy: object) -> str:
    """Why the breaker of one of these engines opens; empty if it does not."""
    seen = BreakerInputs(traffic=engines[name], report=None, name=name, peers=peer_failures(engines))
    state = circuit_breaker.next_breaker_state(None, Breaker.model_validate(policy), seen, 100.0)
    return state.why if state is not None and state.phase is BreakerPhase.OPEN else ""


def beside(first: list[bool], *others: EngineTraffic) -> dict[str, EngineTraffic]:
    return {f"e{place}": one for place, one in enumerate((ended(first), *others))}


def test_consecutive_failures_are_significant_among_healthy_peers() -> None:
    engines = beside([False] * 22 + [True] * 3, *[CLEAN] * 7)
    assert opens(engines) == "3 of its last 3 calls failed, but only 0 of 133 on its peers"
    assert not opens(engines, weighPeers=False)
    assert not opens(beside([False] * 23 + [True] * 2, *[CLEAN] * 7))


def test_simultaneous_failures_do_not_excuse_each_other() -> None:
    broken = ended([False] * 20 + [True, False, True, True, True])
    assert opens(beside([False] * 22 + [True] * 3, broken, broken, broken, *[CLEAN] * 4))


def test_success_rate_needs_enough_peer_calls() -> None:
    assert not opens(beside([True] * 3, *[ended([False] * 3)] * 7))


def test_failing_half_of_the_calls_is_detected_within_the_window() -> None:
    engines = beside([False] * 17 + [True, False, True, False, True, False, False, True], *[CLEAN] * 7)
    assert opens(engines) == "4 of its last 8 calls failed, but only 0 of 133 on its peers"
    assert not opens(beside([False, False, False, True] * 6, *[CLEAN] * 7)), "the rate is that of the policy"


def test_pool_wide_failures_eject_no_engine() -> None:
    engines = beside([False] * 12 + [True] * 13, *[ended([True, False] * 12)] * 7)
    assert not opens(engines)
    assert opens(engines, weighPeers=False)
    assert opens(beside([True] * 25, *[ended([True, False, False] * 8)] * 7)), "it fails more than its peers"


def test_failures_are_detected_while_two_fifths_of_a_pool_are_healthy() -> None:
    half = ended([True, False] * 12)
    assert opens(beside([True, False] * 12, *[half] * 4, CLEAN, CLEAN, CLEAN))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.01, 0.03, 0.05, 0.1, 0.2])
def test_evenly_spread_failures_eject_no_engine(rate: float, seed: int) -> None:
    rng = random.Random(seed)
    windows = [deque[bool](maxlen=25) for _ in range(8)]
    for _ in range(10_000):
        place = rng.randrange(8)
        windows[place].append(rng.random() < rate)
        if windows[place][-1]:
            engines = {f"e{number}": ended(list(window)) for number, window in enumerate(windows)}
            assert not opens(engines, f"e{place}")


@pytest.mark.parametrize("seed", range(4))
def test_half_a_pool_is_ejected_after_three_consecutive_failures(seed: int) -> None:
    world = World(seed=seed).run(8)
    world.probing = False
    for place in range(4):
        world.engines[f"e{place}"].fails = 1.0
    began_s = world.now_s
    world.run(5)
    assert world.out() == {f"e{place}" for place in range(4)}
    failed = [world.engines[f"e{place}"].failed for place in range(4)]
    assert max(failed) < 20, "calls in flight end after the third failure"
    out_s = [
        world.first_s(began_s, lambda now, one=f"e{place}": now[one].ejector is Ejector.ERRORS)
        for place in range(4)
    ]
    assert max(out_s) <= 1.0


# -- for all ---------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=60), st.floats(0.001, 1.0), st.floats(0.05, 1.0))
def test_worst_run_matches_brute_force(outcomes: list[bool], rate: float, share: float) -> None:
    traffic = ended(outcomes)
    found = worst_run(traffic.newest_failed, len(outcomes), share, rate)
    if found is not None:
        assert sum(outcomes[-found.calls :]) == found.failed >= share * found.calls
        assert beyond_chance(found.failed, found.calls, rate)
    elif rate < 0.01 and share <= 0.5:
        assert sum(outcomes[-4:]) < 4


@given(st.integers(0, 25), st.integers(0, 25), st.floats(0, 1))
def test_significance_is_monotone_in_failures(failed: int, more: int, rate: float) -> None:
    failed, most = sorted((failed, more))
    assert beyond_chance(most, 25, rate) >= beyond_chance(failed, 25, rate)


@given(st.integers(0, 500), st.integers(0, 500))
def test_base_rate_is_an_upper_estimate(failed: int, succeeded: int) -> None:
    told = FailureCount(failed=failed, calls=failed + succeeded)
    assert 0 < told.rate <= 1
    assert told.rate >= failed / max(1, failed + succeeded) or told.rate == 1
