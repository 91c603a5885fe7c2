"""Limits are divided by proxies that may be on their way back, for a while."""

from hypothesis import given
from hypothesis import strategies as st

from xds_server.reconcile.roster import EMPTY, HOLD_S, restored, updated


def test_a_count_rises_at_once_and_falls_late() -> None:
    roster = updated(EMPTY, {"gateway": 3}, 0.0)
    assert roster.counts() == {"gateway": 3}
    roster = updated(roster, {"gateway": 1}, 10.0)
    assert roster.counts() == {"gateway": 3}
    roster = updated(roster, {"gateway": 1}, 10.0 + HOLD_S - 1)
    assert roster.counts() == {"gateway": 3}
    roster = updated(roster, {"gateway": 1}, 10.0 + HOLD_S + 1)
    assert roster.counts() == {"gateway": 1}
    roster = updated(roster, {"gateway": 5}, 100.0)
    assert roster.counts() == {"gateway": 5}


def test_a_restarted_server_divides_by_the_proxies_of_the_last_one() -> None:
    roster = updated(restored({"gateway": 3, "sidecar": 2}, 0.0), {"gateway": 1}, 0.5)
    assert roster.counts() == {"gateway": 3, "sidecar": 2}
    assert updated(roster, {"gateway": 2}, HOLD_S + 1).counts() == {"gateway": 2}


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 40)), max_size=20))
def test_the_count_is_the_most_of_the_hold_time(steps: list[tuple[int, float]]) -> None:
    roster, now, seen = EMPTY, 0.0, [(0.0, 0)]
    for count, wait in steps:
        now += wait
        roster = updated(roster, {"gateway": count} if count else {}, now)
        seen.append((now, count))
        divided_by = roster.counts().get("gateway", 0)
        assert count <= divided_by <= max(connected for _, connected in seen)
