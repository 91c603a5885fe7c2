"""Retries of large requests: off while the pool has no spare capacity, without flapping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.resilience.retries import LargeRetries
from xds_server.decide.decisions import LargeRetryDecision
from xds_server.decide.routing.large_retries import MARGIN_POINTS, large_retries

LARGE = LargeRetries.model_validate({"tokensAbove": 4000, "belowUtilizationPercent": 80})


def decided(used: float | None, before: LargeRetryDecision | None = None, *, shadow: bool = False) -> bool:
    found = large_retries(LARGE, before, utilization=used, shadow=shadow)
    assert found is not None
    return found.full


def test_nothing_is_decided_without_a_size() -> None:
    assert large_retries(LargeRetries(), None, utilization=1.0, shadow=False) is None


@pytest.mark.parametrize(("used", "full"), [(None, False), (0.79, False), (0.8, True), (1.5, True)])
def test_full_pool_repeats_no_large_request(used: float | None, full: bool) -> None:
    assert decided(used) is full


def test_shadow_mode_changes_nothing_and_says_what_it_would() -> None:
    found = large_retries(LARGE, None, utilization=0.9, shadow=True)
    assert found is not None
    assert found.shadow is not None
    assert (found.full, found.shadow.full) == (False, True)
    again = large_retries(LARGE, found, utilization=0.75, shadow=True)
    assert again is found


@given(st.lists(st.one_of(st.none(), st.floats(0, 2)), max_size=30))
def test_retries_begin_again_only_below_the_margin(used: list[float | None]) -> None:
    before: LargeRetryDecision | None = None
    for one in used:
        now = large_retries(LARGE, before, utilization=one, shadow=False)
        assert now is not None
        if before is not None and before.full and not now.full:
            assert one is None or 100 * one < 80 - MARGIN_POINTS
        if before is not None and before.full is now.full:
            assert now is before
        before = now
