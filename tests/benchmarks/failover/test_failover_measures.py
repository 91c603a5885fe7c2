"""Numbers of an experiment, on histories made by hand."""

import pytest

from benchmarks.failover.chaos_history import experiment_measures
from benchmarks.failover.experiment_setting import ExperimentSetting
from chaos.fake_engine import EngineHang
from chaos.history.request_outcomes import OutcomeReason

SETTING = ExperimentSetting(engines=2, engine_processes=1)


def test_requests_belong_to_the_window_they_arrived_in(story) -> None:
    found = experiment_measures(
        story.history(
            outcomes=[
                story.outcome(1, 109.9, reason=OutcomeReason.TIMEOUT, latency_s=10.0),
                story.outcome(2, 110.0),
                story.outcome(3, 119.9, latency_s=8.0),
                story.outcome(4, 120.0, reason=OutcomeReason.SHED, latency_s=0.01),
                story.outcome(5, 129.9),
            ]
        ),
        SETTING,
    )
    assert [one.requests for one in (found.before, found.fault, found.after, found.both)] == [1, 2, 2, 4]
    assert found.before.goodput_percent == 0.0
    assert found.fault.goodput_percent == 100.0
    assert found.fault.good_p99_s == pytest.approx(8.0)
    assert found.after.goodput_percent == 50.0
    assert found.both.goodput_percent == 75.0
    assert found.both.reasons == {"shed": 1}


def test_errors_are_counted_by_status(story) -> None:
    outcomes = [
        story.outcome(number, 112.0, reason=OutcomeReason.HTTP_ERROR, status=status)
        for number, status in enumerate((500, 500, 504))
    ]
    assert experiment_measures(story.history(outcomes=outcomes), SETTING).fault.reasons == {
        "http_error 500": 2,
        "http_error 504": 1,
    }


def test_calls_belong_to_the_fault_window_and_attempts_include_unreached_engines(story) -> None:
    found = experiment_measures(
        story.history(
            outcomes=[story.outcome(1, 109.0), story.outcome(2, 112.0), story.outcome(3, 113.0)],
            attempts=[
                story.attempt(1, 0, 109.0),
                story.attempt(2, 0, 112.0),
                story.attempt(2, 1, 112.5),
                story.attempt(3, 1, 113.0),
            ],
            samples=[
                story.sample(109.0, retries=5, refused=1),
                story.sample(115.0),
                story.sample(119.0, retries=9, refused=4),
                story.sample(121.0, retries=99, refused=99),
            ],
        ),
        SETTING,
    )
    assert found.calls_per_request == pytest.approx(1.5)
    assert found.tries_per_request == pytest.approx(3.0)
    assert found.retries_refused == 3


def test_each_proxy_has_its_own_goodput(story) -> None:
    found = experiment_measures(
        story.history(
            outcomes=[
                story.outcome(1, 112.0, target="a"),
                story.outcome(2, 112.0, target="a", reason=OutcomeReason.SHED),
                story.outcome(3, 112.0, target="b"),
            ]
        ),
        SETTING,
    )
    assert found.proxies == {"a": 50.0, "b": 100.0}


def test_streams_that_began_and_were_cut_are_counted_and_whole_answers_are_none(story) -> None:
    found = experiment_measures(
        story.history(
            outcomes=[
                story.outcome(1, 112.0, streaming=True, first_token_s=0.1, longest_gap_s=0.4),
                story.outcome(2, 112.0, streaming=True, first_token_s=0.1, reason=OutcomeReason.TRUNCATED),
                story.outcome(3, 112.0, streaming=True, reason=OutcomeReason.SHED),
                story.outcome(4, 112.0, streaming=True, reason=OutcomeReason.TRUNCATED),
            ]
        ),
        SETTING,
    ).streams
    assert found is not None
    assert (found.streams, found.cut) == (4, 2)
    assert found.gap_max_s == pytest.approx(0.4)
    assert experiment_measures(story.history(outcomes=[story.outcome(1, 112.0)]), SETTING).streams is None


def test_bins_cover_the_experiment_and_count_every_arrival_once(story) -> None:
    outcomes = [story.outcome(number, 100.0 + 0.1 * number) for number in range(300)]
    samples = [
        story.sample(112.1, in_flight={0: 3, 1: 4}, ceiling=20.0),
        story.sample(112.2, in_flight={0: 5, 1: 4}, ceiling=30.0),
        story.sample(112.3, proxy=1, in_flight={0: 1}, ceiling=5.0),
    ]
    found = experiment_measures(
        story.history(story.outage(0, EngineHang()), outcomes=outcomes, samples=samples), SETTING
    ).bins
    assert len(found) == 60
    assert sum(one.arrived for one in found) == 300
    looked = found[24]
    assert (looked.in_flight, looked.on_bad, looked.ceiling) == (10, 6, 35.0)
    assert found[0].in_flight is None
