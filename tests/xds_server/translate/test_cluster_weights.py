"""Weights move off pools only if they are gone, failing or full."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.resilience import ResilienceSpec
from policies.route import ModelRoute
from xds_server.decide.decisions import DegradationState, Ejector, Health
from xds_server.model.fleet import declared
from xds_server.translate.cluster_weights import WEIGHT_RESOLUTION, live_weights, ready_pools, route_weights
from xds_server.translate.route_configuration import RouteReach, envoy_routes


def route(pools, fallback=None, model_change="disclosed"):
    spec = {
        "listener": {"port": 8080},
        "pools": [{"pool": pool, "weight": weight} for pool, weight in pools.items()],
        "fallbacks": [] if fallback is None else list(fallback),
        "modelChange": model_change,
    }
    return ModelRoute.model_validate({"metadata": {"name": "r"}, "spec": spec})


@pytest.mark.parametrize(
    ("pools", "fallback", "ready", "expected"),
    [
        ({"a": 90, "b": 10}, None, "ab", {"a": 90, "b": 10}),
        ({"a": 90, "b": 10}, "f", "abf", {"a": 90, "b": 10, "f": 0}),
        ({"a": 90, "b": 10}, "f", "bf", {"a": 0, "b": 10, "f": 90}),
        ({"a": 90, "b": 10}, "f", "f", {"a": 0, "b": 0, "f": 100}),
        ({"a": 90, "b": 10}, "f", "b", {"a": 0, "b": 10, "f": 0}),  # the fallback is gone, too: the others take it
        ({"a": 90, "b": 10}, None, "b", {"a": 0, "b": 10}),
        ({"a": 90, "b": 10}, "f", "", {"a": 90, "b": 10, "f": 0}),  # no pool is usable: as declared
        ({"a": 100, "b": 0}, None, "b", {"a": 100, "b": 0}),  # b has no share
        ({"a": 90, "b": 10}, "b", "b", {"a": 0, "b": 100}),
        ({"a": 0, "b": 0}, None, "ab", {"a": 1, "b": 1}),  # Envoy refuses weights that are all zero
    ],
)
def test_live_weights(pools, fallback, ready, expected):
    one = route(pools, fallback)
    assert live_weights(one, tuple(expected), [dict.fromkeys(ready, 100.0)], {}) == expected


ALL_AT_A_FALLBACK = 200_000_000
"""Its weight where retries may leave a pool: 11 entries share it."""


def full(percent, **more):
    return DegradationState(level=2, reason="", since_s=0, fallback_percent=percent, **more)


def weights(one, ready, ladders=None, models=None):
    ready = [ready] if isinstance(ready, str) else ready
    tiers = [one if isinstance(one, dict) else dict.fromkeys(one, 100.0) for one in ready]
    return route_weights(one, tiers, ladders or {}, models or {})


@pytest.mark.parametrize(
    ("ready", "ladders", "expected"),
    [
        ("abf", {"a": full(0)}, {"a": 90, "b": 10, "f": 0}),
        ("abf", {"a": full(25)}, {"a": 6750, "b": 1000, "f": 2250}),
        ("abf", {"a": full(100), "b": full(100)}, {"a": 0, "b": 0, "f": 100}),
        ("af", {"a": full(50)}, {"a": 4500, "b": 0, "f": 5500}),  # full and gone add up
        ("ab", {"a": full(50)}, {"a": 90, "b": 10, "f": 0}),  # a missing fallback takes nothing
        ("abf", {"a": full(50), "f": full(0, maintenance="shut")}, {"a": 90, "b": 10, "f": 0}),
        (["f", "abf"], {"a": full(50)}, {"a": 0, "b": 0, "f": 100}),
        ([{"a": 25.0, "b": 100.0, "f": 100.0}], {}, {"a": 2250, "b": 1000, "f": 6750}),  # a is on trial
        ([{"a": 25.0, "b": 100.0}], {}, {"a": 90, "b": 10, "f": 0}),
        (["", "af"], {}, {"a": 90, "b": 0, "f": 10}),  # failing engines before none at all
    ],
)
def test_shares_of_full_and_failing_pools(ready, ladders, expected):
    assert weights(route({"a": 90, "b": 10}, "f"), ready, ladders) == {"r": expected}


@pytest.mark.parametrize(
    ("ready", "ladders", "expected"),
    [
        ("afgh", {}, {"a": 10, "f": 0, "g": 0, "h": 0}),
        ("fgh", {}, {"a": 0, "f": 10, "g": 0, "h": 0}),
        ("gh", {}, {"a": 0, "f": 0, "g": 10, "h": 0}),
        ("h", {}, {"a": 0, "f": 0, "g": 0, "h": 10}),
        ("fgh", {"f": full(25)}, {"a": 0, "f": 7500, "g": 2500, "h": 0}),
        ("fgh", {"f": full(25), "g": full(50)}, {"a": 0, "f": 7500, "g": 1250, "h": 1250}),
        ("fh", {"f": full(25), "g": full(50)}, {"a": 0, "f": 7500, "g": 0, "h": 2500}),
        ("afgh", {"a": full(50), "f": full(50)}, {"a": 5000, "f": 2500, "g": 2500, "h": 0}),
        ("f", {"f": full(50)}, {"a": 0, "f": 10, "g": 0, "h": 0}),  # the last one keeps what it got
        ("fg", {"f": full(0, maintenance="shut")}, {"a": 0, "f": 0, "g": 10, "h": 0}),
        ([{"f": 25.0, "g": 100.0}], {}, {"a": 0, "f": 2500, "g": 7500, "h": 0}),  # f is on trial
        (["", "fg"], {}, {"a": 0, "f": 10, "g": 0, "h": 0}),  # all fail: the first with engines
        ("", {}, {"a": 10, "f": 0, "g": 0, "h": 0}),
    ],
)
def test_next_fallback_takes_what_the_one_before_cannot(ready, ladders, expected):
    assert weights(route({"a": 10}, "fgh"), ready, ladders) == {"r": expected}


def test_model_change_is_judged_for_each_fallback():
    models = {"a": "big", "f": "small", "g": "big", "h": "tiny"}
    opt_in = weights(route({"a": 1}, "fgh", "opt-in"), "fgh", models=models)
    stay = {"a": 0, "g": ALL_AT_A_FALLBACK}
    assert opt_in == {"r": {"a": 0, "f": 1, "g": 0, "h": 0}, "r/stay": stay}
    never = weights(route({"a": 1}, "fgh", "never"), "fgh", models=models)
    assert never == {"r/stay": stay}


@pytest.mark.parametrize(
    ("model_change", "fallback_model", "expected"),
    [
        ("disclosed", "other", {"r": {"a": 0, "f": 1}}),
        ("opt-in", "other", {"r": {"a": 0, "f": 1}}),
        ("never", "other", {}),
        ("never", "same", {"r": {"a": 0, "f": ALL_AT_A_FALLBACK}}),
        ("opt-in", "same", {"r": {"a": 0, "f": ALL_AT_A_FALLBACK}}),
    ],
)
def test_fallback_to_another_model_needs_permission(model_change, fallback_model, expected):
    one = route({"a": 1}, "f", model_change)
    assert weights(one, "f", models={"a": "same", "f": fallback_model}) == expected


def test_requests_without_fallback_share_the_remaining_pools():
    one = route({"a": 9, "b": 1}, "f", "opt-in")
    found = weights(one, "bf", {"b": full(50)}, {"a": "big", "b": "big", "f": "small"})
    assert found == {"r": {"a": 0, "b": 500, "f": 9500}, "r/stay": {"a": 0, "b": 1}}


SAME = dict.fromkeys("abfg", "m")


def first_tries(live, policy):
    """Share of first tries that each pool gets, and the entries that Envoy draws from."""
    entries = Counter(cluster.name for cluster in policy.clusters)
    total = sum(entries[pool] * weight for pool, weight in live.items())
    assert total < 2**32
    return {pool: entries[pool] * weight / total for pool, weight in live.items()}, entries


@pytest.mark.parametrize(
    ("ready", "ladders", "expected"),
    [
        ("abfg", {}, {"a": 0.9, "b": 0.1, "f": 0, "g": 0}),
        ("bfg", {}, {"a": 0, "b": 0.1, "f": 0.9, "g": 0}),
        ("abg", {"a": full(50)}, {"a": 0.45, "b": 0.1, "f": 0, "g": 0.45}),
    ],
)
def test_first_tries_follow_live_weights_where_retries_may_leave(ready, ladders, expected):
    one = route({"a": 90, "b": 10}, "fg")
    (live,) = weights(one, ready, ladders, SAME).values()
    made = envoy_routes(one, ResilienceSpec(), gated=False, models=SAME)[-1].route
    shares, entries = first_tries(live, made.weighted_clusters)
    assert shares == pytest.approx(expected, abs=1e-6)
    assert made.retry_policy.refresh_cluster_on_retry
    assert entries == {"a": 2, "b": 2, "f": 11, "g": 11}
    preferred = "f" if "f" in ready else "g"
    assert all(live[pool] for pool in "fg")
    assert live[preferred] >= 100


@pytest.mark.parametrize(
    ("models", "barred", "attempts"),
    [({**SAME, "f": "other"}, "", 3), (SAME, "g", 3), (SAME, "", 1), (SAME, "", 0)],
    ids=["other model", "barred", "one retry", "no retry"],
)
def test_retries_stay_where_they_cannot_be_served(models, barred, attempts):
    one = route({"a": 90, "b": 10}, "fg")
    spec = ResilienceSpec.model_validate({"retries": {"attempts": attempts}})
    for made in envoy_routes(one, spec, gated=False, models=models, reach=RouteReach(barred=barred)):
        assert not made.route.retry_policy.refresh_cluster_on_retry
        if attempts == 3:
            assert [cluster.weight for cluster in made.route.weighted_clusters.clusters] == [90, 10, 0, 0]


percents = st.floats(0, 100)
declared_weight = st.integers(0, 1_000_000)


@given(st.dictionaries(st.sampled_from("abcd"), declared_weight, min_size=1), st.sets(st.sampled_from("abcdf")),
       st.dictionaries(st.sampled_from("abcd"), percents))  # fmt: skip
@example({"a": 2, "b": 2, "c": 26_663}, set("abcdf"), {"a": 1.0})  # each share is rounded up
def test_weights_are_valid_and_avoid_empty_pools(pools, ready, shares):
    one = route(pools, "f")
    (live,) = weights(one, "".join(ready), {pool: full(share) for pool, share in shares.items()}).values()
    assert live.keys() == {*pools, "f"}
    assert all(weight >= 0 for weight in live.values())
    assert 0 < sum(live.values()) < 2**32
    usable = {pool for pool in ready if pools.get(pool, pool == "f")}
    if usable:
        assert all(pool in ready for pool, weight in live.items() if weight)
    if "f" in ready and sum(live.values()) == WEIGHT_RESOLUTION:
        total = sum(pools.values()) or len(pools)
        for pool, weight in pools.items():
            kept = (weight if any(pools.values()) else 1) / total * (1 - shares.get(pool, 0) / 100)
            assert pool not in ready or abs(live[pool] / WEIGHT_RESOLUTION - kept) <= 1 / WEIGHT_RESOLUTION


def test_a_pool_is_ready_while_one_engine_takes_requests(policies, decided):
    endpoints = "endpoints: [{address: 10.0.0.1, port: 1, name: x}, {address: 10.0.0.1, port: 2, name: y}]"
    policy_set = policies(
        f"kind: EnginePool\nmetadata: {{name: p}}\nspec: {{model: m, {endpoints}}}",
        "kind: EnginePool\nmetadata: {name: empty}\nspec: {model: m}",
    )
    fleet = declared(policy_set)
    assert ready_pools(fleet, decided(fleet)) == (ALL, ALL)
    assert ready_pools(fleet, decided(fleet, out={"p/x": Health.UNHEALTHY})) == (ALL, ALL)
    assert ready_pools(fleet, decided(fleet, out={"p/x": Health.UNHEALTHY, "p/y": Health.DRAINING})) == ({}, {})


ALL = {"p": 100.0}


@pytest.mark.parametrize(
    ("ejector", "floor", "percent", "serves"),
    [
        (Ejector.ERRORS, True, 100.0, {}),
        (Ejector.SLOWNESS, True, 100.0, ALL),  # slow, but it answers
        (Ejector.ERRORS, False, 25.0, {"p": 25.0}),  # on trial
    ],
)
def test_pool_kept_by_its_floor_is_a_last_resort(policies, decided, ejector, floor, percent, serves):
    endpoints = "endpoints: [{address: 10.0.0.1, port: 1, name: x}, {address: 10.0.0.1, port: 2, name: y}]"
    fleet = declared(policies(f"kind: EnginePool\nmetadata: {{name: p}}\nspec: {{model: m, {endpoints}}}"))
    decisions = decided(fleet, out={"p/x": Health.UNHEALTHY})
    kept = {
        key: replace(one, ejector=ejector, floor=floor, traffic_percent=percent)
        if one.health is Health.HEALTHY
        else one
        for key, one in decisions.engines.items()
    }
    assert ready_pools(fleet, replace(decisions, engines=kept)) == (serves, ALL)
