"""Weights move off pools that have no engine left, and only then."""

import pytest

from policies.route import ModelRoute
from xds_server.decide.decisions import Health
from xds_server.fleet import declared
from xds_server.translate.weights import live_weights, ready_pools


def route(pools, fallback=None):
    spec = {
        "listener": {"port": 8080},
        "pools": [{"pool": pool, "weight": weight} for pool, weight in pools.items()],
        "fallback": fallback,
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
        ({"a": 90, "b": 10}, "f", "", {"a": 90, "b": 10, "f": 0}),  # nothing is ready: as declared
        ({"a": 100, "b": 0}, None, "b", {"a": 100, "b": 0}),  # nobody gave b a share
        ({"a": 90, "b": 10}, "b", "b", {"a": 0, "b": 100}),
        ({"a": 0, "b": 0}, None, "ab", {"a": 1, "b": 1}),  # Envoy refuses weights that are all zero
    ],
)
def test_live_weights(pools, fallback, ready, expected):
    assert live_weights(route(pools, fallback), frozenset(ready)) == expected


def test_a_pool_is_ready_while_one_engine_takes_requests(policies, decided):
    endpoints = "endpoints: [{address: 10.0.0.1, port: 1, name: x}, {address: 10.0.0.1, port: 2, name: y}]"
    policy_set = policies(
        f"kind: EnginePool\nmetadata: {{name: p}}\nspec: {{model: m, {endpoints}}}",
        "kind: EnginePool\nmetadata: {name: empty}\nspec: {model: m}",
    )
    fleet = declared(policy_set)
    assert ready_pools(fleet, decided(fleet)) == {"p"}
    assert ready_pools(fleet, decided(fleet, out={"p/x": Health.UNHEALTHY})) == {"p"}
    assert not ready_pools(fleet, decided(fleet, out={"p/x": Health.UNHEALTHY, "p/y": Health.DRAINING}))
