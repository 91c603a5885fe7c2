"""The runtime layer has every live number under Envoy's key, and none that Envoy would ignore."""

import gc
from dataclasses import replace

import pytest
from envoy_data_plane.google.protobuf import Value

from policies.resilience import Hedging
from xds_server.decide.decisions import Ceiling
from xds_server.translate.runtime import runtime_layer, with_hedge_budget

CEILING = Ceiling(interactive=12, batch=5, retry_percent=12.5, retry_min_concurrency=3, reason="")


def test_rtds_circuit_breaker_priority_interactive_is_high_and_batch_default():
    assert runtime_layer({"p": CEILING}, {"r": {"p": 90, "q": 10}}).layer.to_dict() == {
        "circuit_breakers.p.default.max_requests": 5,
        "circuit_breakers.p.default.retry_budget.budget_percent": 12.5,
        "circuit_breakers.p.default.retry_budget.min_retry_concurrency": 3,
        "circuit_breakers.p.high.max_requests": 12,
        "circuit_breakers.p.high.retry_budget.budget_percent": 12.5,
        "circuit_breakers.p.high.retry_budget.min_retry_concurrency": 3,
        "switchgear.route.r.p": 90,
        "switchgear.route.r.q": 10,
    }


def test_numbers_of_past_layers_do_not_fill_memory_for_hours():
    for limit in range(3_000):
        runtime_layer({"p": replace(CEILING, interactive=10_000 + limit)}, {})
    assert sum(isinstance(one, Value) for one in gc.get_objects()) <= 1_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"interactive": -1},
        {"batch": 1.5},
        {"interactive": 2**32},
        {"retry_percent": float("nan")},
        {"retry_percent": 101.0},
        {"retry_min_concurrency": -3},
    ],
)
def test_invalid_runtime_number_is_refused(wrong):
    with pytest.raises(ValueError, match="p"):
        runtime_layer({"p": replace(CEILING, **wrong)}, {})


@pytest.mark.parametrize(
    ("hedging", "percent"),
    [
        ({}, 12.5),
        ({"enabled": True, "delay": "1s"}, 5),
        ({"enabled": True, "delay": "1s", "maxPercent": 50}, 12.5),
        ({"enabled": True}, 12.5),  # without a delay there is no hedge
    ],
)
def test_hedging_shares_the_retry_budget(hedging, percent):
    assert with_hedge_budget(CEILING, Hedging.model_validate(hedging)).retry_percent == percent
