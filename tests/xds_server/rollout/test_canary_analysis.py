"""Selection and verdict of a canary."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.objectives import Objective, ObjectiveKind
from xds_server.rollout.canary_analysis import (
    MIN_REQUESTS,
    CanaryVerdict,
    CohortMetrics,
    analyze_canary,
    canary_proxies,
)
from xds_server.telemetry.objective_counts import ObjectivesCount

NODES = st.dictionaries(st.text(min_size=1), st.sampled_from(["", "z1", "z2", "z3"]), max_size=60)


@given(NODES, st.floats(0.1, 100))
def test_canary_share_is_bounded_and_deterministic(zones: dict[str, str], percent: float) -> None:
    found = canary_proxies(zones, percent)
    assert found <= zones.keys()
    assert bool(found) == bool(zones)
    assert abs(len(found) - len(zones) * percent / 100) <= 1
    assert canary_proxies(dict(reversed(zones.items())), percent) == found


@given(NODES, st.floats(0.1, 100))
def test_canary_selection_spreads_over_zones(zones: dict[str, str], percent: float) -> None:
    found = canary_proxies(zones, percent)
    taken = {zone: sum(zones[node] == zone for node in found) for zone in zones.values()}
    whole = {zone: sum(one == zone for one in zones.values()) for zone in zones.values()}
    most = max(taken.values(), default=0)
    assert all(count >= min(most - 1, whole[zone]) for zone, count in taken.items())


@given(NODES, st.floats(0.1, 50))
def test_larger_canary_share_contains_the_smaller(zones: dict[str, str], percent: float) -> None:
    assert canary_proxies(zones, percent) <= canary_proxies(zones, 2 * percent)


@given(NODES, st.text(min_size=1))
def test_new_proxy_moves_at_most_one_canary_member(zones: dict[str, str], new: str) -> None:
    with_new = {**zones, new: zones.get(new, "z1")}
    assert len(canary_proxies(with_new, 20) ^ canary_proxies(zones, 20)) <= 3


def seen(
    done: float = 1000, failed: float = 0, shed: float = 0, times_s: list[float] | None = None
) -> CohortMetrics:
    found = CohortMetrics(done=done, failed=failed, shed=shed)
    found.answers_s.extend(times_s or [])
    return found


@pytest.mark.parametrize(
    ("canary", "others", "word", "expected"),
    [
        (seen(), seen(), CanaryVerdict.GOOD, "0 % fail"),
        (seen(200, failed=20), seen(1800), CanaryVerdict.BAD, "10 % of 200 requests fail"),
        (
            seen(200, failed=20),
            seen(1800, failed=180),
            CanaryVerdict.GOOD,
            "10 % elsewhere",
        ),  # the engines are at fault
        (seen(60, failed=1), seen(600), CanaryVerdict.GOOD, "elsewhere"),  # one failure is chance
        (
            seen(2000, failed=30),
            seen(20000),
            CanaryVerdict.GOOD,
            "elsewhere",
        ),  # significant, but too small to matter
        (seen(200, shed=40), seen(1800), CanaryVerdict.BAD, "are shed"),
        (seen(shed=0, done=MIN_REQUESTS - 1), seen(), CanaryVerdict.UNKNOWN, "the canary had 49"),
        (seen(), seen(3), CanaryVerdict.UNKNOWN, "the others had 3"),
        (seen(20, failed=20), seen(), CanaryVerdict.UNKNOWN, "the canary had 20"),
        (
            seen(times_s=[0.1] * 290 + [2.0] * 10),
            seen(times_s=[0.1] * 300),
            CanaryVerdict.BAD,
            "p99 of answers: 2 s",
        ),
        (seen(times_s=[0.1] * 100 + [2.0] * 10), seen(times_s=[0.1] * 300), CanaryVerdict.GOOD, "fail"),
        (seen(times_s=[0.003] * 300), seen(times_s=[0.001] * 300), CanaryVerdict.GOOD, "fail"),
    ],
)
def test_canary_verdict_reasons(
    canary: CohortMetrics, others: CohortMetrics, word: CanaryVerdict, expected: str
) -> None:
    found = analyze_canary(canary, others)
    assert found.verdict is word
    assert expected in found.reasons[0]


@pytest.mark.parametrize(
    ("canary", "others", "slo_percent", "word", "expected"),
    [
        (
            seen(),
            seen(),
            99,
            CanaryVerdict.GOOD,
            "100 % of 1000 requests succeeded (required: 99 %)",
        ),
        (seen(), seen(0), 99, CanaryVerdict.GOOD, "100 %"),  # nothing to compare with
        (
            seen(1000, failed=100),
            seen(1000, failed=100),
            99,
            CanaryVerdict.BAD,
            "90 % of 1000",
        ),  # like the others, but too bad
        (
            seen(900, shed=100),
            seen(900, shed=100),
            99,
            CanaryVerdict.BAD,
            "90 % of 1000",
        ),  # shed requests are not answered
        (seen(1000, failed=15), seen(), 99, CanaryVerdict.UNKNOWN, "98.5 %"),  # below the SLO, but maybe by chance
        (seen(1000, failed=1), seen(), 100, CanaryVerdict.BAD, "99.9 %"),
        (seen(1000, failed=10), seen(), 99, CanaryVerdict.GOOD, "99 %"),
        (seen(MIN_REQUESTS - 1), seen(0), 99, CanaryVerdict.UNKNOWN, "the canary had 49"),
        (seen(200, failed=20), seen(1800), 50, CanaryVerdict.BAD, "10 % of 200 requests fail"),
    ],
)
def test_canary_verdict_with_slo(
    canary: CohortMetrics, others: CohortMetrics, slo_percent: float, word: CanaryVerdict, expected: str
) -> None:
    found = analyze_canary(canary, others, slo_percent)
    assert found.verdict is word
    assert expected in found.reasons[0]


@given(st.integers(0, 2**32), st.floats(0, 0.5))
def test_canary_false_positive_rate_is_low(seed: int, failing: float) -> None:
    rng = random.Random(seed)

    def side(requests: int) -> CohortMetrics:
        return seen(requests, failed=sum(rng.random() < failing for _ in range(requests)))

    bad = sum(analyze_canary(side(100), side(400)).verdict is CanaryVerdict.BAD for _ in range(20))
    assert bad <= 2


@given(st.integers(50, 5000), st.integers(50, 5000), st.data())
def test_canary_verdict_is_monotone_in_failures(done: int, others: int, data: st.DataObject) -> None:
    failed = data.draw(st.integers(0, done - 1))
    elsewhere = seen(others, failed=data.draw(st.integers(0, others)))
    if analyze_canary(seen(done, failed=failed), elsewhere).verdict is CanaryVerdict.BAD:
        assert analyze_canary(seen(done, failed=failed + 1), elsewhere).verdict is CanaryVerdict.BAD


P99 = Objective(name="total-p99", kind=ObjectiveKind.TOTAL, target=0.99, limit_s=2.0)
GOOD = Objective(name="good", kind=ObjectiveKind.GOOD, target=0.99)


def timed(objective: Objective, calls: int, bad: int) -> CohortMetrics:
    """A cohort whose route ``chat`` had these calls, ``bad`` of them beyond the objective."""
    counts = ObjectivesCount((objective,))
    for number in range(calls):
        counts.add_request(1)
        if objective.kind is ObjectiveKind.TOTAL:
            counts.add_answer(3.0 if number < bad else 1.0, 0.0, 1)
        elif number >= bad:
            counts.add_answer(1.0, 0.0, 1)
    found = seen(1000)
    found.objectives = {"chat": counts}
    return found


@pytest.mark.parametrize("objective", [P99, GOOD])
@pytest.mark.parametrize(
    ("canary", "others", "expected"),
    [
        ((200, 0), (1800, 0), None),
        ((200, 30), (1800, 18), "15 % of 200 calls are beyond it (limit 1 %), 1 % of 1800 elsewhere"),
        ((200, 30), (1800, 270), None),  # the engines are at fault
        ((200, 4), (1800, 18), None),  # chance
        ((49, 49), (1800, 0), None),  # too few calls
        ((200, 30), (49, 0), "15 % of 200 calls are beyond it (limit 1 %)"),  # judged alone
    ],
)
def test_canary_that_misses_an_objective_is_bad(
    objective: Objective, canary: tuple[int, int], others: tuple[int, int], expected: str | None
) -> None:
    found = analyze_canary(timed(objective, *canary), timed(objective, *others))
    if expected is None:
        assert found.verdict is CanaryVerdict.GOOD
    else:
        assert (found.verdict, found.reasons) == (
            CanaryVerdict.BAD,
            (f"route chat misses objective {objective.name}: {expected}",),
        )
