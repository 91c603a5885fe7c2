"""Early stop of an experiment."""

import pytest

from chaos.scenario.abort_condition import abort_reason
from chaos.scenario.scenario_model import AbortCondition

LIMIT = AbortCondition.model_validate({"goodputBelowPercent": 50, "after": "4s"})
GOOD, BAD = True, False


@pytest.mark.parametrize(
    ("ended", "now_s", "stops"),
    [
        ([(9.0, BAD), (9.5, GOOD), (9.6, GOOD)], 10.0, False),
        ([(9.0, BAD), (9.5, BAD), (9.6, GOOD)], 10.0, True),
        # What ended before the window, or will end after now, does not count.
        ([(5.9, BAD), (6.0, BAD), (9.0, GOOD)], 10.0, False),
        ([(5.9, GOOD), (9.0, BAD)], 10.0, True),
        # Exactly at the limit is not below it.
        ([(9.0, BAD), (9.5, GOOD)], 10.0, False),
        # No whole window has passed.
        ([(3.0, BAD)], 3.9, False),
        ([(3.0, BAD)], 4.0, True),
    ],
)
def test_low_recent_goodput_aborts(ended: list[tuple[float, bool]], now_s: float, *, stops: bool) -> None:
    assert bool(abort_reason(LIMIT, ended, now_s, 10.0)) is stops


def test_missing_answers_abort_if_enough_requests_were_due() -> None:
    assert "no request ended" in abort_reason(LIMIT, [], 10.0, 10.0)
    assert abort_reason(LIMIT, [], 10.0, 1.0) == ""


def test_no_limit_never_aborts() -> None:
    assert abort_reason(AbortCondition(), [(9.0, BAD)], 10.0, 10.0) == ""
