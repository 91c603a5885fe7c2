"""What retries make of a slowdown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.planning.error import PlanError
from chaos.planning.retry_amplification import (
    FIVE_RETRIES,
    ONE_RETRY,
    SlowdownIncident,
    calls_per_request,
    failing_share,
    incident_course,
)


@given(st.floats(0, 1), st.integers(0, 8))
def test_failure_share_is_recovered_from_the_call_count(fails: float, retries: int) -> None:
    calls = calls_per_request(fails, retries)
    if retries:
        assert calls_per_request(failing_share(calls, retries), retries) == pytest.approx(calls)
    assert 1 <= calls <= retries + 1


def test_five_retries_make_four_calls_when_five_of_six_fail() -> None:
    assert failing_share(4, 5) == pytest.approx(0.834, abs=1e-3)
    with pytest.raises(PlanError):
        failing_share(7, 5)


def test_five_retries_with_a_short_timeout_cause_a_fourfold_retry_storm() -> None:
    found = incident_course(FIVE_RETRIES)
    assert 3.5 < found.slow_times < 5
    assert found.calm_goodput > 0.99
    assert found.slow_goodput < 0.5
    assert found.after_goodput < 0.5, "the storm should outlast its cause"


def test_one_retry_with_a_long_timeout_causes_no_retry_storm() -> None:
    found = incident_course(ONE_RETRY)
    assert found.slow_times < 1.1
    assert min(found.slow_goodput, found.after_goodput) > 0.99


def test_with_more_spare_room_the_same_clients_do_little() -> None:
    found = incident_course(FIVE_RETRIES, SlowdownIncident(load=0.6, after_s=20))
    assert found.slow_times < 1.3
    assert found.slow_goodput > 0.99
