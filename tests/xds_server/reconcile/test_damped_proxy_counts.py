"""Limits are divided by proxies that may reconnect, for a while."""

from hypothesis import given
from hypothesis import strategies as st

from xds_server.reconcile.proxy_counts import HOLD_S, NO_COUNTS, damped_counts, restored_counts


def test_damped_proxy_count_rises_at_once_and_falls_late() -> None:
    roster = damped_counts(NO_COUNTS, {"gateway": 3}, 0.0)
    assert roster.counts() == {"gateway": 3}
    roster = damped_counts(roster, {"gateway": 1}, 10.0)
    assert roster.counts() == {"gateway": 3}
    roster = damped_counts(roster, {"gateway": 1}, 10.0 + HOLD_S - 1)
    assert roster.counts() == {"gateway": 3}
    roster = damped_counts(roster, {"gateway": 1}, 10.0 + HOLD_S + 1)
    assert roster.counts() == {"gateway": 1}
    roster = damped_counts(roster, {"gateway": 5}, 100.0)
    assert roster.counts() == {"gateway": 5}


def test_restarted_server_uses_last_run_proxy_counts() -> None:
    roster = damped_counts(restored_counts({"gateway": 3, "sidecar": 2}, 0.0), {"gateway": 1}, 0.5)
    assert roster.counts() == {"gateway": 3, "sidecar": 2}
    assert damped_counts(roster, {"gateway": 2}, HOLD_S + 1).counts() == {"gateway": 2}


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 40)), max_size=20))
def test_damped_proxy_count_is_the_maximum_of_the_hold_time(steps: list[tuple[int, float]]) -> None:
    roster, now, seen = NO_COUNTS, 0.0, [(0.0, 0)]
    for count, wait in steps:
        now += wait
        roster = damped_counts(roster, {"gateway": count} if count else {}, now)
        seen.append((now, count))
        divided_by = roster.counts().get("gateway", 0)
        assert count <= divided_by <= max(connected for _, connected in seen)
