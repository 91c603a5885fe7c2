"""Quantiles of what was added to a histogram."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.latency_histogram import Histogram, histogram, histogram_delta, quantiles

NAME = b"vllm:x_bucket"
PAGE = b"""# HELP vllm:x X.
# TYPE vllm:x histogram
vllm:x_bucket{engine="0",le="0.1",model_name="m"} 1.0
vllm:x_bucket{engine="0",le="1.0",model_name="m"} 3.0
vllm:x_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:x_bucket{engine="1",le="0.1",model_name="m"} 0.0
vllm:x_bucket{engine="1",le="1.0",model_name="m"} 0.0
vllm:x_bucket{engine="1",le="+Inf",model_name="m"} 1.0
vllm:x_count{engine="0",model_name="m"} 4.0
"""


def made(*counts: float) -> Histogram:
    return Histogram(bounds_s=(0.1, 1.0, math.inf), counts=counts)


def test_ranks_are_summed() -> None:
    assert histogram(PAGE, NAME) == made(1.0, 3.0, 5.0)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        PAGE.replace(b"+Inf", b"9"),
        PAGE.replace(b" 3.0", b" x"),
        PAGE.replace(b" 3.0", b" NaN"),
        PAGE.replace(b'le="0.1"', b'le="0.1'),
        PAGE.replace(b" 3.0", b""),
    ],
)
def test_unreadable_histogram_is_none(page: bytes) -> None:
    assert histogram(page, NAME) is None


def test_only_what_was_added_counts() -> None:
    found = quantiles(histogram_delta(made(100, 100, 100), made(100, 110, 110)))
    assert found is not None
    assert found.p50_s == pytest.approx(0.55)
    assert found.p99_s == pytest.approx(0.991)
    assert quantiles(histogram_delta(made(1, 2, 3), made(1, 2, 3))) is None
    assert quantiles(None) is None


def test_restarted_engine_is_read_from_zero() -> None:
    assert histogram_delta(made(100, 100, 100), made(1, 1, 1)) == made(1, 1, 1)


def test_beyond_the_last_bound_nothing_more_is_claimed() -> None:
    found = quantiles(made(0, 0, 10))
    assert found is not None
    assert found.p50_s == found.p99_s == 1.0


@settings(deadline=None)  # a slow machine must not fail it
@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=200), st.lists(st.floats(0.001, 100), max_size=200))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(new: list[float], old: list[float]) -> None:
    bounds = (0.01, 0.1, 1.0, 10.0, math.inf)

    def counted(times: list[float]) -> Histogram:
        return Histogram(bounds_s=bounds, counts=tuple(float(sum(t <= b for t in times)) for b in bounds))

    found = quantiles(histogram_delta(counted(old), counted(old + new)))
    assert found is not None
    assert found.p50_s <= found.p99_s
    for share, value in ((0.5, found.p50_s), (0.99, found.p99_s)):
        true = sorted(new)[max(0, math.ceil(share * len(new)) - 1)]
        upper = next(b for b in bounds if true <= b)
        lower = max((b for b in bounds if b < upper), default=0.0)
        assert lower <= value <= upper
