"""Questions, phases and what is left of a history without faults."""

from dataclasses import replace

import pytest

from chaos.history.request_outcomes import OutcomeReason
from chaos.measures.bench_validity import FAIR, STRICT, bench_quality
from chaos.measures.experiment_measures import measures_summary
from chaos.measures.request_periods import experiment_phases, questions
from tests.chaos import history_builders
from tests.chaos.simulated_history import Play, played


def test_caller_request_spans_all_its_attempts() -> None:
    tries = [
        history_builders.request(1, 10.0, reason=OutcomeReason.SHED, latency_s=0.1, question="a"),
        history_builders.request(
            2, 12.0, latency_s=0.5, question="a", try_number=2, streaming=True, first_token_s=0.2
        ),
        history_builders.request(3, 11.0, reason=OutcomeReason.TIMEOUT, latency_s=4.0, question="b"),
    ]
    first, second = questions(tries)
    assert (first.at_s, first.ok, first.latency_s, first.first_token_s) == (10.0, True, 2.5, 2.2)
    assert (second.at_s, second.ok, second.reason) == (11.0, False, OutcomeReason.TIMEOUT)


def test_phases_follow_recorded_faults() -> None:
    found = experiment_phases(played(Play()))
    assert (found.fault_s, found.healed_s, found.end_s) == (10.0, 20.0, 30.0)
    whole = experiment_phases(history_builders.history(began=history_builders.began()))
    assert (whole.fault_s, whole.healed_s, whole.end_s) == (30.0, 30.0, 30.0)
    unhealed = experiment_phases(
        history_builders.history(history_builders.outage("e0", end_s=None), began=history_builders.began())
    )
    assert (unhealed.fault_s, unhealed.healed_s) == (10.0, 30.0)


def test_summary_is_computed_from_the_history_alone() -> None:
    found = measures_summary(played(Play(bad=("e0", "e1", "e2"), streaming_percent=50)))
    assert found.measures.before.goodput_percent == pytest.approx(100.0, abs=5.0)
    assert found.possible_fault_percent is not None
    assert found.measures.fault.goodput_percent is not None
    assert found.measures.fault.goodput_percent < 90.0
    assert abs(found.possible_fault_percent - found.measures.fault.goodput_percent) < 15.0
    assert found.measures.streams is not None
    assert sum(one.arrived for one in found.measures.bins) == found.measures.before.requests + (
        found.measures.both.requests
    )


def test_empty_history_has_a_summary() -> None:
    found = measures_summary(history_builders.history(began=history_builders.began()))
    assert found.measures.both.goodput_percent is None
    assert found.possible_both_percent is None


def test_bench_limits_for_verdicts_and_publishing_differ() -> None:
    late = [replace(history_builders.request(number, number / 10), lag_s=0.05) for number in range(100)]
    history = history_builders.history(began=history_builders.began(), requests=late)
    assert bench_quality(history, STRICT, fault_s=30.0, engines_until_s=30.0).problems
    assert not bench_quality(history, FAIR, fault_s=30.0, engines_until_s=30.0).problems
