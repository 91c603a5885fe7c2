"""Waits double up to the maximum, for any number of failures."""

from xds_server.model.backoff import ExponentialBackoff


def test_waits_double_up_to_the_maximum() -> None:
    backoff = ExponentialBackoff(first_s=0.5, most_s=3.0)
    assert [backoff.wait_s(failures) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_any_number_of_failures_has_a_wait() -> None:
    backoff = ExponentialBackoff(first_s=0.5, most_s=30.0)
    assert backoff.wait_s(100_000) == 30.0
    assert backoff.wait_s(0) == 0.5
