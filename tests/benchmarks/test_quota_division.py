"""The measurement of divided quotas: rows that are kept stay so, at a thousand proxies."""

import numpy as np
import pytest

from benchmarks.quota_division import measured, traffic_spreads


@pytest.mark.parametrize(
    ("spread", "burst", "times"),
    [
        ("even", 10_000, 0.8),
        ("even", 10_000, 10.0),
        ("Zipf", 1000, 1.3),
        ("a tenth of the proxies", 10_000, 0.8),
        ("a tenth of the proxies", 1000, 10.0),
    ],
)
def test_quota_is_kept_over_a_thousand_proxies(spread: str, burst: int, times: float) -> None:
    row = measured(spread, traffic_spreads(1000)[spread], 1000, burst=burst, times=times, seed=1)
    assert row.kept, row


@pytest.mark.parametrize("spread", traffic_spreads(1))
def test_quota_is_exact_at_one_proxy(spread: str) -> None:
    assert measured(spread, traffic_spreads(1)[spread], 100, burst=100, times=10.0, seed=1).kept


def test_spreads_are_parts_of_one_demand() -> None:
    for parts in traffic_spreads(1000).values():
        assert np.isclose(parts.sum(), 1.0)
