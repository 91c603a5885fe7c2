"""All checks together: good histories pass, bad ones fail, damaged or doubtful ones never pass."""

import functools
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos import checks
from chaos.checks.check_finding import CheckResult
from chaos.checks.experiment_verdict import check_findings
from chaos.history.recorded_history import History
from chaos.history.request_outcomes import OutcomeReason
from tests.chaos import history_builders
from tests.chaos.simulated_history import Play, played

PROMISED = {
    "goodputPercent": 80,
    "goodputOfPossiblePercent": 90,
    "answerP99": "6s",
    "firstTokenP99": "4s",
    "tokenGapP99": "1s",
    "refusedWithin": "5s",
    "amplification": 1.5,
    "wastedPercent": 10,
    "wastedGpuSeconds": 20,
    "leftAloneWithin": "1s",
    "backWithin": "2s",
    "cutStreams": 0,
    "floorEnginesPercent": 50,
    "idleWhileSheddingPercent": 30,
}
ALWAYS = {"noStuckEjection", "configurationConverged", "processes", "blastRadius", "historyComplete", "bench"}
OF_GOOD_ANSWERS = {"answerP99", "firstTokenP99", "tokenGapP99"}
OF_TRUST = {"blastRadius", "historyComplete", "bench"}
GOOD = Play(
    bad=("e0", "e1"),
    streaming_percent=50,
    wait_s=1.0,
    seconds=16.0,
    start_s=5.0,
    end_s=10.0,
    hypothesis=PROMISED,
)
BAD = replace(GOOD, left_after_s=None, wait_s=None, retries=5, try_timeout_s=0.6)


@functools.cache
def history_of(good: bool) -> History:
    return played(GOOD if good else BAD)


def answers(history: History) -> dict[str, CheckResult]:
    return {one.check: one.answer for one in check_findings(history)}


def test_good_history_passes_every_check() -> None:
    found = check_findings(history_of(good=True))
    assert {one.check for one in found} == set(PROMISED) | ALWAYS | {"steadyBefore"}
    assert [f"{one.check}: {one.why}" for one in found if one.answer is not CheckResult.YES] == []


def test_bad_history_fails_the_expected_checks() -> None:
    found = answers(history_of(good=False))
    broken = {check for check, answer in found.items() if answer is CheckResult.NO}
    assert broken >= {"goodputPercent", "amplification", "wastedPercent", "leftAloneWithin"}


def test_only_set_limits_and_standing_checks_are_judged() -> None:
    found = answers(played(replace(GOOD, hypothesis={})))
    assert set(found) == ALWAYS


@pytest.mark.parametrize("good", [True, False])
@given(share=st.floats(0.0, 1.0), seed=st.integers(), reason=st.sampled_from(list(OutcomeReason)[1:]))
@settings(max_examples=8, deadline=None)
def test_verdict_is_monotone_in_failures(good: bool, share: float, seed: int, reason: OutcomeReason) -> None:
    history, rng = history_of(good), random.Random(seed)
    worse = [
        replace(one, reason=reason, status=0) if one.ok and rng.random() < share else one
        for one in history.requests
    ]
    before, after = answers(history), answers(replace(history, requests=worse))
    for check, answer in before.items():
        if answer is CheckResult.NO and check not in OF_GOOD_ANSWERS:
            assert after[check] is not CheckResult.YES, check


@given(slower_s=st.floats(0.0, 20.0))
@settings(max_examples=5, deadline=None)
def test_verdict_is_monotone_in_latency(slower_s: float) -> None:
    history = history_of(good=True)
    slow = [replace(one, latency_s=one.latency_s + slower_s) for one in history.requests]
    found = answers(replace(history, requests=slow))
    assert (found["answerP99"] is CheckResult.YES) <= (slower_s < 6.0)
    again = answers(replace(history, requests=[replace(one, latency_s=one.latency_s + 1.0) for one in slow]))
    for check, answer in found.items():
        if answer is CheckResult.NO:
            assert again[check] is not CheckResult.YES, check


@given(more=st.integers(1, 60), at_s=st.floats(6.5, 9.5))
@settings(max_examples=5, deadline=None)
def test_verdict_is_monotone_in_calls_to_a_faulty_engine(more: int, at_s: float) -> None:
    history = history_of(good=False)
    stray = [history_builders.attempt(0, "e0", at_s, slot_s=0.1) for _ in range(more)]
    worse = replace(history, attempts=sorted([*history.attempts, *stray], key=lambda one: one.at_s))
    before, after = answers(history), answers(worse)
    for check in ("leftAloneWithin", "amplification", "wastedPercent", "wastedGpuSeconds"):
        assert not (before[check] is CheckResult.NO and after[check] is CheckResult.YES), check


@pytest.mark.parametrize("good", [True, False])
@given(until_s=st.floats(0.0, 18.0))
@settings(max_examples=8, deadline=None)
def test_truncated_history_never_passes(good: bool, until_s: float) -> None:
    found = check_findings(broken_off(history_of(good), until_s))
    said_yes = {one.check for one in found if one.answer is CheckResult.YES}
    assert said_yes <= OF_TRUST - {"historyComplete"}


def test_truncated_good_history_has_no_failed_check() -> None:
    for until_s in (0.5, 3.0, 5.5, 8.0, 10.2, 13.0, 15.5):
        found = check_findings(broken_off(history_of(good=True), until_s))
        assert [f"{until_s} {one.check}: {one.why}" for one in found if one.answer is CheckResult.NO] == []


def test_every_check_is_documented() -> None:
    sources = "".join(path.read_text() for path in Path(checks.__path__[0]).glob("*.py"))
    names = set(re.findall(r'(?:check=|case, )"(\w+)"', sources)) | set(answers(history_of(good=True)))
    told = Path("docs/chaos/verdict.md").read_text()
    assert {"nothingLostWithoutControlPlane", "ranToTheEnd", "tokenGapP99"} <= names
    assert {name for name in names if f"`{name}`" not in told} == set()


def broken_off(history: History, until_s: float) -> History:
    """History of a lab killed at that time: no engine logs, which are read at the end."""
    return replace(
        history,
        outages=tuple(
            replace(one, end_s=None if one.end_s is None or one.end_s > until_s else one.end_s)
            for one in history.outages
            if one.start_s <= until_s
        ),
        requests=[one for one in history.requests if one.ended_at_s <= until_s],
        attempts=[],
        samples=[one for one in history.samples if one.at_s <= until_s],
        detected=[one for one in history.detected if one.at_s <= until_s],
        decided=[one for one in history.decided if one.at_s <= until_s],
        pushed=[one for one in history.pushed if one.at_s <= until_s],
        answered=[one for one in history.answered if one.at_s <= until_s],
        used=None,
        ended_s=None,
    )
