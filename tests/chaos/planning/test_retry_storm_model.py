"""The published storm to the digit, and what hedging does with and without spare room."""

from dataclasses import replace

import pytest

from chaos.planning.error import PlanError
from chaos.planning.retry_storm_model import (
    BREAKER,
    HEDGED,
    HEDGED_IN_SPARE,
    NAIVE,
    PUBLISHED,
    ModelPolicy,
    RetryStormModel,
    run_model,
)

SHORT = RetryStormModel(ticks=900)


@pytest.mark.parametrize("policy", [NAIVE, BREAKER])
def test_the_published_runs_come_out_to_the_digit(policy: ModelPolicy) -> None:
    found = run_model(policy).whole
    assert found.wasted == PUBLISHED[policy.name].wasted
    assert round(found.goodput, 3) == PUBLISHED[policy.name].goodput


def test_hedging_helps_the_tail_with_spare_room_and_hurts_without() -> None:
    naive, hedged = run_model(NAIVE, SHORT).phases, run_model(HEDGED, SHORT).phases
    assert hedged["before"].late < naive["before"].late
    assert hedged["before"].wasted > 1.5 * naive["before"].wasted
    assert hedged["during"].goodput < naive["during"].goodput - 0.05
    # It keeps itself going: what waits is sent twice, and so waits.
    assert hedged["after"].goodput < 0.7 < naive["after"].goodput


def test_hedging_in_spare_only_does_not_hurt() -> None:
    breaker, spare = run_model(BREAKER, SHORT).phases, run_model(HEDGED_IN_SPARE, SHORT).phases
    assert spare["before"].late <= breaker["before"].late
    assert spare["during"].goodput == pytest.approx(breaker["during"].goodput, abs=0.01)


def test_a_limit_on_retries_loses_what_fails_too_often() -> None:
    calm = RetryStormModel(ticks=900, sick_engines=0, ends_well=0.5)
    found = run_model(replace(NAIVE, retries=0), calm).whole
    assert found.goodput == pytest.approx(0.5, abs=0.02)
    assert found.calls == found.offered


def test_every_call_is_good_or_wasted() -> None:
    for policy in (NAIVE, BREAKER, HEDGED):
        for phase in run_model(policy, SHORT).phases.values():
            assert phase.good + phase.wasted == phase.calls


def test_storms_that_cannot_be_are_refused() -> None:
    with pytest.raises(PlanError):
        run_model(NAIVE, RetryStormModel(sick_engines=9))
