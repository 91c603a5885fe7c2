"""The verdict blames a side for what it could have helped, and for nothing else."""

from itertools import pairwise

import pytest

from chaos.demo.plan import ENGINES, LONGEST_SERVICE_S, SLOTS, ZONES, Chapter, plan
from chaos.demo.score import Attempt, by_chapter, by_request, score, verdict
from chaos.demo.screen import svg
from chaos.outcomes import Outcome, Reason

PLAN = plan()


def outcome(name="r1", *, at_s=0.0, reason=Reason.OK, streaming=False, first_token_s=None, latency_s=0.5):
    return Outcome(
        request_id=name,
        target="a",
        streaming=streaming,
        arrived_at_s=at_s,
        lag_s=0.0,
        status=200,
        reason=reason,
        first_token_s=first_token_s,
        latency_s=latency_s,
        tokens=1,
    )


def scores(**bad: list[Outcome]):
    """One good request in each chapter, and the bad ones named by chapter."""
    return {span.chapter: score([outcome(), *bad.get(span.chapter.name, [])], {}) for span in PLAN.spans}


def cut(count):
    return [outcome(f"c{n}", reason=Reason.TRUNCATED, streaming=True, first_token_s=0.1) for n in range(count)]


def test_nothing_lost_is_a_pass():
    assert verdict(scores(), PLAN).passed


@pytest.mark.parametrize("chapter", [chapter.name for chapter in Chapter])
@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.OK])
def test_one_lost_request_fails_whatever_the_chapter_and_the_reason(chapter, reason):
    found = verdict(scores(**{chapter: [outcome(reason=reason)]}), PLAN)
    assert not found.passed
    assert "1 requests were lost" in found.objections[0]


def test_a_stream_without_a_token_is_lost_and_not_cut():
    found = score([outcome(reason=Reason.TRUNCATED, streaming=True)], {})
    assert (found.lost, found.cut) == (1, 0)


@pytest.mark.parametrize(
    ("chapter", "allowed"), [("HANG", SLOTS), ("CRASH", 3 * SLOTS), ("DRAIN", 0), ("CALM", 0)]
)
def test_streams_may_be_cut_only_under_engines_that_die(chapter, allowed):
    assert verdict(scores(**{chapter: cut(allowed)}), PLAN).passed
    assert not verdict(scores(**{chapter: cut(allowed + 1)}), PLAN).passed


def test_a_chapter_without_requests_shows_nothing():
    empty = {**scores(), Chapter.HANG: score([], {})}
    assert not verdict(empty, PLAN).passed


def test_attempts_and_waste_are_counted_by_request():
    tried = by_request(
        [
            Attempt(request_id="r1", wasted_slot_s=2.0),
            Attempt(request_id="r1", wasted_slot_s=0.0),
            Attempt(request_id="someone else's", wasted_slot_s=9.0),
        ]
    )
    found = score([outcome("r1"), outcome("r2")], tried)
    assert (found.attempts, found.wasted_slot_s) == (1.0, 2.0)


def test_latency_quantiles_are_of_good_answers():
    found = score([outcome(latency_s=1.0), outcome(latency_s=9.0, reason=Reason.TIMEOUT)], {})
    assert found.good_p99_s == 1.0
    assert found.goodput_percent == 50.0


def test_requests_count_to_the_chapter_they_arrive_in():
    began_s = 100.0
    at = {span.chapter: outcome(at_s=began_s + span.start_s + 0.01) for span in PLAN.spans}
    found = by_chapter(list(at.values()), began_s, PLAN)
    assert found == {chapter: [one] for chapter, one in at.items()}
    late = by_chapter([outcome(at_s=began_s + 1e6)], began_s, PLAN)
    assert late[Chapter.DRAIN]


@pytest.mark.parametrize("fast", [True, False])
def test_no_fault_reaches_into_the_record_of_the_chapter_before(fast):
    spans = plan(fast=fast).spans
    for before, after in pairwise(spans):
        assert before.end_s + LONGEST_SERVICE_S == pytest.approx(after.start_s)
        assert before.start_s <= before.heal_s <= after.start_s


def test_the_plan_strikes_engines_that_exist():
    assert len(ENGINES) == 9
    for span in PLAN.spans:
        assert set(span.targets) <= set(ENGINES)
    crashed = next(span for span in PLAN.spans if span.chapter is Chapter.CRASH).targets
    assert {name[0] for name in crashed} == set(ZONES)


def test_the_picture_needs_no_network_and_says_the_verdict():
    both = {"switchgear": scores(), "plain envoy": scores(DRAIN=[outcome(reason=Reason.TIMEOUT)])}
    picture = svg(both, verdict(both["switchgear"], PLAN))
    assert "url(http" not in picture
    assert "@font-face" not in picture
    assert "passed" in picture
    assert "failed" in svg(both, verdict(both["plain envoy"], PLAN))
