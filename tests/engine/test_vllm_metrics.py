"""Counters out of Prometheus text."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.fake_engine.metrics_page import FakeVllmMetrics
from chaos.fake_engine.step_scheduler import StepCounters
from engine.vllm_metrics import MetricsError, VllmCounters, vllm_counters

PAGE = b"""# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 2.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:prompt_tokens_total{engine="0"} 1e3 1700000000000
vllm:prompt_tokens_created{engine="0"} 1.7e9
vllm:generation_tokens_total{engine="0"} 40
process_start_time_seconds 1.7e9"""


def test_ranks_are_summed_and_look_alikes_left_alone() -> None:
    found = vllm_counters(PAGE)
    assert replace(found, ranks=()) == VllmCounters(
        generation_tokens=40,
        prompt_tokens=1000,
        running=5,
        waiting=1,
        kv_cache_usage_ratio=0.75,
        started_at_s=1.7e9,
    )
    assert [(one.rank, one.running, one.waiting) for one in found.ranks] == [("0", 3, 1), ("1", 2, 0)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'kv_cache_usage_perc{engine="1"} 0.75', b'kv_cache_usage_perc{engine="1"} 0.8'),
        (
            b'num_requests_running{engine="1",model_name="a"} 2.0',
            b'num_requests_running{engine="1",model_name="a"} 1',
        ),
        (b"process_start", b'vllm:iteration_tokens_total_count{engine="1"} 1\nprocess_start'),
        (b"process_start", b'vllm:request_success_total{engine="1",finished_reason="stop"} 1\nprocess_start'),
    ],
)
def test_scheduler_step_changes_its_own_rank(old: bytes, new: bytes) -> None:
    assert old in PAGE
    before, after = vllm_counters(PAGE).ranks, vllm_counters(PAGE.replace(old, new)).ranks
    assert [now == then for now, then in zip(after, before, strict=True)] == [True, False]


@pytest.mark.parametrize(
    "line",
    [
        b'vllm:request_success_total{engine="1",finished_reason="abort"} 1',
        b'vllm:admission_rejections_total{engine="1"} 1',
        b'vllm:iteration_tokens_total_count{engine="1"} NaN',
        b'vllm:iteration_tokens_total_sum{engine="1"} 5',
    ],
)
def test_value_that_a_hung_core_may_change_does_not_count_as_step(line: bytes) -> None:
    assert vllm_counters(PAGE + b"\n" + line).ranks == vllm_counters(PAGE).ranks


def test_the_simulated_engines_page_is_understood() -> None:
    metrics = FakeVllmMetrics("m")
    now = StepCounters(running=2, waiting=7, kv_cache_ratio=0.5, prompt_tokens=11, generation_tokens=13)
    metrics.step(now, {}, kv_cache_full=False)
    found = vllm_counters(metrics.text())
    assert (found.running, found.waiting, found.tokens, found.kv_cache_usage_ratio) == (2, 7, 24, 0.5)


@pytest.mark.parametrize("number", [b"NaN", b"-1", b"+Inf", b"", b"one", b"1e999"])
def test_numbers_that_cannot_be_are_refused(number: bytes) -> None:
    with pytest.raises(MetricsError, match="generation_tokens"):
        vllm_counters(PAGE.replace(b"} 40", b"} " + number))


def test_a_missing_counter_is_named() -> None:
    with pytest.raises(MetricsError, match="num_requests_waiting"):
        vllm_counters(PAGE.replace(b"vllm:num_requests_waiting{", b"vllm:other{"))


def test_several_api_processes_report_no_gauge_before_the_first_request() -> None:
    page = b'vllm:prompt_tokens_total{engine="0"} 0.0\nvllm:generation_tokens_total{engine="0"} 0.0\n'
    found = vllm_counters(page)
    assert (found.running, found.waiting, found.started_at_s) == (0, 0, None)
    with pytest.raises(MetricsError, match="num_requests_running"):
        vllm_counters(page + b"process_start_time_seconds 1.7e9")


@given(st.binary(max_size=400), st.integers(0, len(PAGE)))
def test_no_bytes_bring_anything_but_a_metrics_error(noise: bytes, place: int) -> None:
    try:
        found = vllm_counters(PAGE[:place] + noise + PAGE[place:])
    except MetricsError:
        return
    assert found.tokens >= 0
