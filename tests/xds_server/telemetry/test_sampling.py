"""The sampling share: down at once, up slowly, and never lower because proxies do not follow."""

from hypothesis import given
from hypothesis import strategies as st

from xds_server.telemetry.sampling import BUDGET_PER_S, EFFECTIVE_AFTER_S, RISE_S, STEPS, Sampling


def test_als_sampling_is_full_within_the_budget():
    assert Sampling().after(BUDGET_PER_S, 10.0) == Sampling()


def test_als_sampling_falls_at_once():
    assert Sampling().after(4 * BUDGET_PER_S, 10.0).share == 0.2


def test_in_transit_entries_use_the_previous_share():
    sampling = Sampling().after(4 * BUDGET_PER_S, 10.0)
    assert sampling.counted(10.0 + EFFECTIVE_AFTER_S / 2) == 1.0
    assert sampling.counted(10.0 + EFFECTIVE_AFTER_S) == 0.2


def test_als_sampling_rises_stepwise():
    sampling = Sampling().after(4 * BUDGET_PER_S, 10.0)
    quiet = 0.1 * BUDGET_PER_S * sampling.share
    assert sampling.after(quiet, 10.0 + RISE_S - 0.1).share == 0.2
    assert sampling.after(quiet, 10.0 + RISE_S).share == 0.5
    assert sampling.after(0.9 * BUDGET_PER_S * 0.4, 10.0 + RISE_S).share == 0.2


def test_unfollowed_sampling_is_not_lowered_further():
    sampling = Sampling().after(4 * BUDGET_PER_S, 10.0)
    assert sampling.after(4 * BUDGET_PER_S, 20.0) is sampling
    followed = sampling.after(0.8 * BUDGET_PER_S, 20.0)
    assert followed.share == 0.2
    assert followed.after(5 * BUDGET_PER_S, 21.0).share < 0.2


@given(st.lists(st.floats(0, BUDGET_PER_S), max_size=20), st.floats(0, 200 * BUDGET_PER_S))
def test_sampling_settles_under_steady_load(quiet, load):
    # Traffic that doubles just when the share is halved looks like proxies that do not follow; it is not checked.
    loads = [*quiet, load]
    sampling, now_s = Sampling(), 0.0
    for each in [*loads, *[loads[-1]] * 100]:
        now_s += 1.0
        sampling = sampling.after(each * sampling.share, now_s)
        assert sampling.share in STEPS
    before = sampling
    for _ in range(30):
        now_s += 1.0
        sampling = sampling.after(loads[-1] * sampling.share, now_s)
    assert sampling is before
    assert loads[-1] * sampling.share <= BUDGET_PER_S or sampling.share == STEPS[-1]
