"""Each request is counted as what became of it, to the chapter it arrived in."""

from itertools import pairwise

import pytest

from chaos.demo.demo_plan import (
    ENGINES,
    FALLBACK_ENGINES,
    FALLBACK_SPEED,
    LONGEST_SERVICE_S,
    MAX_TOKENS,
    PREFILL_S,
    SLOTS,
    TOKEN_S,
    ZONES,
    Chapter,
    demo_plan,
)
from chaos.demo.scoring import ScoredAttempt, by_chapter, by_request, score
from chaos.history.request_outcomes import OutcomeReason, RequestOutcome

PLAN = demo_plan()


def outcome(name="r1", *, at_s=0.0, reason=OutcomeReason.OK, latency_s=0.5, **settings):
    return RequestOutcome(
        request_id=name,
        target="a",
        arrived_at_s=at_s,
        lag_s=0.0,
        status=200,
        reason=reason,
        latency_s=latency_s,
        tokens=1,
        **{"streaming": False, "first_token_s": None, **settings},
    )


def attempt(name="r1", *, wasted_slot_s=0.0, finished=True, fallback=False):
    return ScoredAttempt(request_id=name, wasted_slot_s=wasted_slot_s, finished=finished, fallback=fallback)


def test_stream_without_a_token_is_lost_not_cut():
    found = score([outcome(reason=OutcomeReason.TRUNCATED, streaming=True)], {})
    assert (found.lost, found.cut) == (1, 0)


def test_shed_request_is_not_lost():
    told = outcome(reason=OutcomeReason.SHED, refusal="overload")
    found = score(
        [told, outcome(reason=OutcomeReason.SHED), outcome(reason=OutcomeReason.SHED, refusal="no-engine")], {}
    )
    assert (found.shed, found.lost, found.good) == (1, 2, 0)


def test_fallback_header_is_checked_against_the_engine():
    tried = by_request(
        [
            attempt("told", fallback=True),
            attempt("silent", fallback=True),
            attempt("own"),
            attempt("misnamed"),
            # It was tried there, and answered elsewhere.
            attempt("elsewhere", fallback=True, finished=False),
            attempt("elsewhere"),
            attempt("no answer", fallback=True),
        ]
    )
    outcomes = [
        outcome("told", fallback="small"),
        outcome("silent"),
        outcome("own"),
        outcome("misnamed", fallback="small"),
        outcome("elsewhere"),
        outcome("no answer", reason=OutcomeReason.TIMEOUT, fallback="small"),
    ]
    found = score(outcomes, tried)
    assert (found.fallback, found.undisclosed, found.misnamed) == (2, 1, 1)


def test_attempts_and_waste_are_counted_per_request():
    tried = by_request(
        [
            attempt("r1", wasted_slot_s=2.0, finished=False),
            attempt("r1"),
            attempt("someone else's", wasted_slot_s=9.0),
        ]
    )
    found = score([outcome("r1"), outcome("r2")], tried)
    assert (found.attempts, found.wasted_slot_s) == (1.0, 2.0)


def test_latency_quantiles_are_of_good_answers():
    found = score([outcome(latency_s=1.0), outcome(latency_s=9.0, reason=OutcomeReason.TIMEOUT)], {})
    assert found.good_p99_s == 1.0
    assert found.goodput_percent == 50.0


def test_requests_count_to_the_chapter_they_arrive_in():
    began_s = 100.0
    at = {span.chapter: outcome(at_s=began_s + span.start_s + 0.01) for span in PLAN.spans}
    found = by_chapter(list(at.values()), began_s, PLAN)
    assert found == {chapter: [one] for chapter, one in at.items()}
    late = by_chapter([outcome(at_s=began_s + 1e6)], began_s, PLAN)
    assert late[Chapter.OVERLOAD]


def test_failure_after_the_next_fault_counts_to_that_fault():
    calm, hang = PLAN.spans[:2]
    at_s = calm.end_s - 0.1
    before, after, good = (
        outcome(at_s=at_s, latency_s=hang.strike_s - at_s + more_s, reason=reason)
        for more_s, reason in ((-0.01, OutcomeReason.RESET), (0.01, OutcomeReason.RESET), (0.01, OutcomeReason.OK))
    )
    found = by_chapter([before, after, good], 0.0, PLAN)
    assert (found[Chapter.CALM], found[Chapter.HANG]) == ([before, good], [after])


@pytest.mark.parametrize("fast", [True, False])
def test_chapters_end_before_the_next_fault(fast):
    spans = demo_plan(fast=fast).spans
    for before, after in pairwise(spans):
        assert before.end_s + LONGEST_SERVICE_S == pytest.approx(after.start_s)
        assert before.start_s <= before.strike_s <= before.heal_s <= after.start_s
    assert spans[-1].start_s < spans[-1].strike_s < spans[-1].heal_s < spans[-1].end_s


def test_plan_targets_existing_engines():
    assert len(ENGINES) == 9
    for span in PLAN.spans:
        assert set(span.targets) <= set(ENGINES)
    crashed = next(span for span in PLAN.spans if span.chapter is Chapter.CRASH).targets
    assert {name[0] for name in crashed} == set(ZONES)
    assert not set(FALLBACK_ENGINES) & set(ENGINES)


def test_last_chapter_load_fits_the_fallback():
    span = PLAN.spans[-1]
    left = len(ENGINES) - len(span.targets)
    service_s = PREFILL_S + TOKEN_S * sum(MAX_TOKENS) / len(MAX_TOKENS)
    can_serve_per_s = left * SLOTS / service_s
    fallback_per_s = len(FALLBACK_ENGINES) * SLOTS / (service_s / FALLBACK_SPEED)
    asked_per_s = PLAN.rate_per_s + span.more_per_s
    assert 1.3 * can_serve_per_s < asked_per_s < can_serve_per_s + fallback_per_s
