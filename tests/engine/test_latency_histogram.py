"""Quantiles of what was added to a histogram."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.latency_histogram import Histogram, histogram, histogram_delta, quantiles, token_gaps
from engine.report import TokenGaps

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
vllm:x_sum{engine="0",model_name="m"} 2.5
vllm:x_sum{engine="1",model_name="m"} 4.0
"""


def made(*counts: float, sum_s: float = 0.0) -> Histogram:
    return Histogram(bounds_s=(0.1, 1.0, math.inf), counts=counts, sum_s=sum_s)


def test_ranks_are_summed() -> None:
    assert histogram(PAGE, NAME) == made(1.0, 3.0, 5.0, sum_s=6.5)


@pytest.mark.parametrize("value", [b"x", b"NaN", b"+Inf", b""])
def test_unreadable_sum_is_left_out(value: bytes) -> None:
    assert histogram(PAGE.replace(b" 2.5", b" " + value), NAME) == made(1.0, 3.0, 5.0, sum_s=4.0)


def test_token_gaps_are_the_histogram_without_its_last_bound() -> None:
    assert token_gaps(histogram(PAGE, NAME)) == TokenGaps(bounds_s=(0.1, 1.0), counts=(1, 3, 5), sum_s=6.5)
    assert token_gaps(None) is None
    assert token_gaps(Histogram(bounds_s=(math.inf,), counts=(1.0,))) is None
    assert token_gaps(made(1.0, 2.0, math.inf)) is None


@given(st.lists(st.integers(0, 100), min_size=3, max_size=3), st.floats(0, 5))
@settings(max_examples=50)
def test_gaps_within_a_limit_grow_with_it(added: list[int], limit_s: float) -> None:
    counts = tuple(sum(added[: place + 1]) for place in range(3))
    gaps = TokenGaps(bounds_s=(0.1, 1.0), counts=counts, sum_s=0.0)
    assert 0 <= gaps.within(limit_s / 2) <= gaps.within(limit_s) <= counts[1]
    assert [gaps.within(bound_s) for bound_s in gaps.bounds_s] == list(counts[:2])


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
