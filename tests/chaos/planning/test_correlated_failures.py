"""Correlated failures: compared with full enumeration, and with samples."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.planning import spare_engines
from chaos.planning.correlated_failures import (
    FailureDomains,
    engines_per_cell,
    fewest_sampled_spares,
    fewest_spares,
    is_exact,
    resized,
    sampled_shortage,
    shortage_probability,
    survive_one_zone,
)
from chaos.planning.error import PlanError

BOTH = FailureDomains(
    engines=7, zones=2, racks=2, builds=2, engine_down=0.1, zone_down=0.05, rack_down=0.03, build_down=0.02
)


def by_hand(layout: FailureDomains, need: int) -> float:
    """Enumerate failed zones, racks and builds, with the engines left in each case."""
    counts = engines_per_cell(layout)
    total = 0.0
    for zones, racks, builds in product(
        product((0, 1), repeat=layout.zones),
        product((0, 1), repeat=layout.zones * layout.racks),
        product((0, 1), repeat=layout.builds),
    ):
        weight = 1.0
        for states, down in ((zones, layout.zone_down), (racks, layout.rack_down), (builds, layout.build_down)):
            for one in states:
                weight *= down if one else 1 - down
        left = sum(
            int(counts[zone, rack, build])
            for zone, rack, build in product(range(layout.zones), range(layout.racks), range(layout.builds))
            if not (zones[zone] or racks[zone * layout.racks + rack] or builds[build])
        )
        total += weight * (
            1.0 if left < need else spare_engines.shortage_probability(need, left - need, layout.engine_down)
        )
    return total


@pytest.mark.parametrize("need", [1, 3, 5, 7])
@pytest.mark.parametrize("layout", [BOTH, replace(BOTH, build_down=0.0), replace(BOTH, zones=1, racks=3)])
def test_shortage_equals_full_enumeration(layout: FailureDomains, need: int) -> None:
    assert shortage_probability(layout, need) == pytest.approx(by_hand(layout, need), rel=1e-12)


@given(st.integers(1, 30), st.integers(0, 10), st.floats(0.001, 0.5), st.integers(1, 4))
@settings(max_examples=50)
def test_shortage_is_binomial_without_correlation(need: int, spares: int, down: float, zones: int) -> None:
    layout = FailureDomains(engines=need + spares, zones=zones, engine_down=down)
    assert shortage_probability(layout, need) == pytest.approx(
        spare_engines.shortage_probability(need, spares, down), rel=1e-9
    )


@given(st.integers(1, 20), st.integers(1, 4), st.floats(0.0, 0.2))
@settings(max_examples=40)
def test_extra_engine_never_raises_shortage(need: int, zones: int, zone_down: float) -> None:
    layout = FailureDomains(
        engines=need, zones=zones, racks=2, builds=2, engine_down=0.05, zone_down=zone_down, build_down=0.01
    )
    now = [shortage_probability(resized(layout, need + spares), need) for spares in range(4)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(now))


def test_samples_agree_and_are_reproducible() -> None:
    found = sampled_shortage(BOTH, 5, samples=40_000, seed=3)
    assert found.low < shortage_probability(BOTH, 5) < found.high
    assert found == sampled_shortage(BOTH, 5, samples=40_000, seed=3)
    assert found != sampled_shortage(BOTH, 5, samples=40_000, seed=4)


def test_samples_without_a_shortage_keep_an_interval() -> None:
    found = sampled_shortage(FailureDomains(engines=5, engine_down=1e-9), 5, samples=1000, seed=1)
    assert found.share == 0
    assert 1e-3 < found.high < 1e-2


def test_single_zone_limits_spares() -> None:
    layout = FailureDomains(engines=20, zones=1, engine_down=0.005, zone_down=0.001)
    assert fewest_spares(layout, 20, 1e-4) is None
    assert fewest_spares(replace(layout, zones=3), 20, 1e-4) is not None


def test_fewest_spares_is_minimal() -> None:
    layout = FailureDomains(engines=20, zones=3, engine_down=0.005, zone_down=0.0005, build_down=0.0)
    spares = fewest_spares(layout, 20, 1e-3)
    assert spares is not None
    assert (
        shortage_probability(resized(layout, 20 + spares), 20)
        <= 1e-3
        < shortage_probability(resized(layout, 19 + spares), 20)
    )
    assert spares > spare_engines.fewest_spares(20, 0.005, 1e-3)


def test_many_builds_need_samples() -> None:
    layout = FailureDomains(engines=8, builds=8, engine_down=0.01, build_down=0.02)
    assert not is_exact(layout)
    with pytest.raises(PlanError, match="samples"):
        shortage_probability(layout, 8)
    spares = fewest_sampled_spares(layout, 8, 0.1, samples=20_000, seed=1)
    assert spares is not None
    assert sampled_shortage(resized(layout, 8 + spares), 8, samples=20_000, seed=1).high <= 0.1


@given(st.integers(1, 40), st.integers(2, 5), st.floats(1e-4, 0.2), st.floats(1e-6, 0.1))
@settings(max_examples=50)
def test_survive_one_zone_is_enough_and_small(need: int, zones: int, down: float, allowed: float) -> None:
    engines = survive_one_zone(need, zones, down, allowed)

    def left(of: int) -> int:
        return of - -(-of // zones)

    assert spare_engines.shortage_probability(need, left(engines) - need, down) <= allowed
    # A whole round of zones fewer is never enough.
    fewer = left(engines - zones)
    assert fewer < need or spare_engines.shortage_probability(need, fewer - need, down) > allowed


def test_survive_one_zone_needs_two_zones() -> None:
    with pytest.raises(PlanError, match="at least two"):
        survive_one_zone(5, 1, 0.01, 0.01)


@pytest.mark.parametrize("wrong", [{"zones": 0}, {"engines": 0}, {"zone_down": 1.5}, {"engines": 30_000}])
def test_invalid_layout_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError):
        shortage_probability(replace(BOTH, **wrong), 3)  # type: ignore[arg-type]
