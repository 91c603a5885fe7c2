"""The measurement of divided quotas: it keeps what a division cannot break, at a thousand proxies."""

import numpy as np
import pytest

from benchmarks.quota_division import TARGET_PERCENT, measured, traffic_spreads


def test_quota_is_exact_for_even_traffic_and_buckets_of_two() -> None:
    row = measured("even", traffic_spreads(1000)["even"], 1000, 2000, seed=1)
    assert row.kept, row


@pytest.mark.parametrize("spread", traffic_spreads(1))
def test_quota_is_exact_at_one_proxy(spread: str) -> None:
    assert measured(spread, traffic_spreads(1)[spread], 100, 100, seed=1).kept


@pytest.mark.parametrize("spread", traffic_spreads(1000))
def test_all_proxies_together_admit_no_more_than_the_quota(spread: str) -> None:
    row = measured(spread, traffic_spreads(1000)[spread], 1000, 2000, seed=1)
    assert row.error_percent <= TARGET_PERCENT, row


def test_spreads_are_parts_of_one_demand() -> None:
    for parts in traffic_spreads(1000).values():
        assert np.isclose(parts.sum(), 1.0)
