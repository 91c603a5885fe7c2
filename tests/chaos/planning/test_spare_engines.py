"""Spares: compared with exact fractions; monotone and minimal."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.planning.availability import HOURS_PER_MONTH, down_share, unavailability
from chaos.planning.error import PlanError
from chaos.planning.spare_engines import MOST_ENGINES, fewest_spares, shortage_probability, spares_for

needs = st.integers(1, 60)
downs = st.integers(1, 999).map(lambda one: Fraction(one, 1000))


def exactly(need: int, spares: int, down: Fraction) -> Fraction:
    """Probability that more than ``spares`` are down, summed term by term."""
    engines = need + spares
    return sum(
        (
            comb(engines, gone) * down**gone * (1 - down) ** (engines - gone)
            for gone in range(spares + 1, engines + 1)
        ),
        start=Fraction(0),
    )


@given(needs, st.integers(0, 20), downs)
def test_shortage_is_the_exact_binomial_tail(need: int, spares: int, down: Fraction) -> None:
    assert shortage_probability(need, spares, float(down)) == pytest.approx(
        float(exactly(need, spares, down)), rel=1e-10
    )


@given(needs, st.integers(0, 20), downs)
def test_shortage_falls_with_spares_and_availability(need: int, spares: int, down: Fraction) -> None:
    now = shortage_probability(need, spares, float(down))
    assert shortage_probability(need, spares + 1, float(down)) <= now
    assert shortage_probability(need, spares, float(down) / 2) <= now


@given(needs, st.floats(1e-6, 0.6), st.floats(1e-12, 0.5))
def test_fewest_spares_is_enough_and_minimal(need: int, down: float, allowed: float) -> None:
    spares = fewest_spares(need, down, allowed)
    assert shortage_probability(need, spares, down) <= allowed
    assert spares == 0 or shortage_probability(need, spares - 1, down) > allowed


def test_spares_of_twenty_engines_at_three_and_four_nines() -> None:
    three, four = spares_for(
        20, unavailability("0.995"), (unavailability("0.999"), unavailability("0.9999")), cost_per_hour=2
    )
    assert (three.spares, four.spares) == (2, 3)
    assert (three.cost_per_month, four.cost_per_month) == (2 * 2 * HOURS_PER_MONTH, 3 * 2 * HOURS_PER_MONTH)
    assert HOURS_PER_MONTH == 8760 / 12
    assert 1 - shortage_probability(8, 0, 0.01) == pytest.approx(0.99**8)


def test_twelve_and_thirteen_nines_differ() -> None:
    twelve, thirteen = unavailability("0.999999999999"), unavailability("99.99999999999%")
    assert (twelve, thirteen) == (1e-12, 1e-13)
    found = [fewest_spares(20, 0.005, one) for one in (twelve, thirteen)]
    assert found[0] < found[1]
    for allowed, spares in zip((twelve, thirteen), found, strict=True):
        assert (
            exactly(20, spares, Fraction(1, 200)) <= Fraction(allowed) < exactly(20, spares - 1, Fraction(1, 200))
        )


def test_large_fleet_is_computed() -> None:
    spares = fewest_spares(1_000_000, 0.01, 1e-9)
    assert (
        shortage_probability(1_000_000, spares, 0.01) <= 1e-9 < shortage_probability(1_000_000, spares - 1, 0.01)
    )


@pytest.mark.parametrize("text", ["", "x", "-0.1", "1.5", "nan", "inf", "120%"])
def test_invalid_probability_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="not a probability"):
        unavailability(text)


def test_percentage_without_sign_gets_a_hint() -> None:
    with pytest.raises(PlanError, match=r"did you mean 99\.9%"):
        unavailability("99.9")


@pytest.mark.parametrize(
    ("need", "down", "allowed", "says"),
    [
        (0, 0.1, 0.1, "at least one"),
        (5, 1.0, 0.1, "never up"),
        (5, 0.1, 0.0, "target of 1"),
        (5, 1.2, 0.1, "must be 0 to 1"),
        (5, 0.1, 1.2, "must be 0 to 1"),
        (MOST_ENGINES + 1, 0.1, 0.1, "the limit is"),
        (5, 1 - 1e-9, 1e-3, "not even"),
    ],
)
def test_impossible_numbers_are_refused(need: int, down: float, allowed: float, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        fewest_spares(need, down, allowed)


def test_perfect_engines_need_no_spares() -> None:
    assert fewest_spares(8, 0.0, 0.0) == 0


def test_availability_from_crashes_and_repair() -> None:
    # Up for ten days, then down for a day.
    assert down_share(crashes_per_day=0.1, repair_s=86_400) == pytest.approx(1 / 11)
    assert down_share(crashes_per_day=0.1, repair_s=86_000, detection_s=400) == pytest.approx(1 / 11)
    with pytest.raises(PlanError):
        down_share(crashes_per_day=-1, repair_s=1)
