"""Envoy routes of a ModelRoute, their order and limits."""

from dataclasses import replace
from datetime import timedelta

import pytest

from policies.resilience import ResilienceSpec
from policies.route import ModelRoute
from xds_server.decide.decisions import DegradationState, HedgeDecision, TimeLimits
from xds_server.translate.effective_spec import RouteDecisions
from xds_server.translate.lua_scripts import LUA_FILTER
from xds_server.translate.route_configuration import by_specificity, envoy_routes


def route(name="r", more=None, **match):
    spec = {"listener": {"port": 8080}, "match": match, "pools": [{"pool": "p"}], **(more or {})}
    return ModelRoute.model_validate({"metadata": {"name": name}, "spec": spec})


def kinds(one, spec=None, *, gated=False, models=None, **decided):
    """Envoy routes by the suffix of their name."""
    settings = ResilienceSpec.model_validate(spec or {})
    made = envoy_routes(one, settings, gated=gated, models=models or {}, decided=RouteDecisions(**decided))
    return {each.name.partition("/")[2]: each for each in made}


def test_routes_are_ordered_by_specificity():
    header = {"name": "x", "present": True}
    wanted = [
        route("path", pathPrefix="/v1/chat"),
        route("headers", headers=[header, header], pathPrefix="/"),
        route("header", headers=[header]),
        route("both", model="m", stream=True),
        route("model", model="m"),
        route("stream", stream=False),
        route("a"),
        route("b"),
    ]
    assert [one.metadata.name for one in by_specificity(reversed(wanted))] == [one.metadata.name for one in wanted]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [(None, ["streaming", "non-streaming"]), (True, ["streaming"]), (False, ["non-streaming"])],
)
def test_route_has_one_variant_per_kind_of_request(stream, expected):
    wanted = [name for kind in expected for name in (f"{kind}/once", kind)]
    assert list(kinds(route(stream=stream))) == wanted
    assert list(kinds(route(stream=stream), {"retries": {"attempts": 0}})) == expected  # no request runs twice


def test_streams_have_idle_timeouts_and_others_a_route_timeout():
    made = kinds(route(), {"timeouts": {"nonStreaming": {"total": "10s"}, "streaming": {"total": "60s"}}})
    stream, rest = made["streaming"].route, made["non-streaming"].route
    assert (stream.timeout, rest.timeout) == (timedelta(0), timedelta(seconds=10))
    assert stream.max_stream_duration.max_stream_duration == timedelta(seconds=60)
    assert rest.max_stream_duration is None
    assert stream.retry_policy.per_try_idle_timeout == timedelta(seconds=30)
    assert rest.retry_policy.per_try_idle_timeout is None


@pytest.mark.parametrize(
    ("gated", "first", "between", "per_try", "try_idle", "idle"),
    [
        (True, "5s", "2s", None, 5, 0),  # the idle timer also runs before the first token, and serves both
        (True, "5s", "9s", 5, None, 26),  # four tries of 5 s and three pauses of 2 s may pass in silence
        (True, "5s", "30s", 5, None, 30),
        (True, None, "2s", None, 2, 0),
        (False, "5s", "2s", None, 5, 0),
        (False, "5s", "9s", None, 9, 0),
        (True, "5s", "0s", 5, None, 0),
        (False, "5s", "0s", None, None, 0),  # silence is allowed: only this timer finds a late first token
    ],
)
def test_per_try_timeouts_of_a_stream(gated, first, between, per_try, try_idle, idle):
    made = kinds(
        route(), {"timeouts": {"streaming": {"firstToken": first, "betweenTokens": between}}}, gated=gated
    )
    policy = made["streaming"].route.retry_policy
    assert policy.per_try_timeout == (None if per_try is None else timedelta(seconds=per_try))
    assert policy.per_try_idle_timeout == (None if try_idle is None else timedelta(seconds=try_idle))
    assert made["streaming"].route.idle_timeout == timedelta(seconds=idle)


def test_hedged_stream_uses_the_route_idle_timeout():
    spec = {"hedging": {"enabled": True, "delay": "1s"}, "timeouts": {"streaming": {"betweenTokens": "9s"}}}
    stream = kinds(route(), spec, gated=True)["streaming"].route
    assert stream.retry_policy.per_try_timeout == timedelta(seconds=1)
    assert stream.retry_policy.per_try_idle_timeout is None
    assert stream.idle_timeout == timedelta(seconds=10)


@pytest.mark.parametrize("gated", [True, False])
def test_stream_is_hedged_only_with_the_gate(gated):
    spec = {"hedging": {"enabled": True, "delay": "1s"}, "retries": {"attempts": 0}}
    made = kinds(route(), spec, gated=gated)
    assert (made["streaming"].route.hedge_policy is not None) is gated
    assert made["non-streaming"].route.hedge_policy.hedge_on_per_try_timeout
    policy = made["non-streaming"].route.retry_policy
    assert policy.per_try_timeout == timedelta(seconds=1)
    assert policy.num_retries == 1  # a hedge is a retry to Envoy


@pytest.mark.parametrize("retries", [{"attempts": 0}, {"conditions": [], "statuses": []}])
def test_hedging_without_retries_has_an_unmatchable_retry_on(retries):
    policy = kinds(route(), {"hedging": {"enabled": True, "delay": "1s"}, "retries": retries})["non-streaming"]
    # Without any condition Envoy would not hedge; with a real one it would retry.
    assert policy.route.retry_policy.retry_on == "retriable-status-codes"
    assert policy.route.retry_policy.retriable_status_codes == []


def test_no_retries_keep_the_per_try_timeouts():
    made = kinds(route(), {"retries": {"attempts": 0}})["streaming"].route.retry_policy
    assert (made.retry_on, made.num_retries) == ("", 0)
    assert made.per_try_idle_timeout == timedelta(seconds=30)


def test_retry_after_backoff_is_honoured_only_where_wanted():
    assert kinds(route())["streaming"].route.retry_policy.rate_limited_retry_back_off is not None
    deaf = kinds(route(), {"retries": {"retryAfter": {"honour": False}}})
    assert deaf["streaming"].route.retry_policy.rate_limited_retry_back_off is None


def headers(one):
    return [
        (each.name, each.present_match, each.string_match and each.string_match.exact)
        for each in one.match.headers
    ]


def test_non_idempotent_requests_retry_only_on_connect_failure():
    spec = {
        "hedging": {"enabled": True, "delay": "1s"},
        "timeouts": {"nonStreaming": {"perTry": "20s"}, "streaming": {"firstToken": "5s", "betweenTokens": "9s"}},
        "retries": {"attempts": 2, "conditions": ["reset", "retriable-4xx"], "statuses": [503]},
    }
    made = kinds(route(), spec, gated=True)
    for kind in ("streaming", "non-streaming"):
        once = made[f"{kind}/once"]
        assert headers(once) == [("x-switchgear-side-effects", None, "true"), ("idempotency-key", False, None)]
        policy = once.route.retry_policy
        assert policy.retry_on == "connect-failure,refused-stream,reset-before-request"
        assert (policy.num_retries, policy.retriable_status_codes, policy.per_try_timeout) == (2, [], None)
        assert once.route.hedge_policy is None
        assert not made[kind].match.headers
        assert made[kind].route.hedge_policy is not None
    # Silence still ends a stream, but not before a first token may be late.
    assert made["streaming/once"].route.retry_policy.per_try_idle_timeout == timedelta(seconds=9)
    assert made["non-streaming/once"].route.timeout == made["non-streaming"].route.timeout


def test_unrequested_retry_on_condition_is_not_added():
    made = kinds(route(), {"retries": {"conditions": ["refused-stream", "retriable-4xx"]}})
    assert made["streaming/once"].route.retry_policy.retry_on == "refused-stream"


def test_idempotency_key_route_allows_retries():
    made = kinds(route(more={"sideEffects": True}))
    assert list(made) == ["streaming", "streaming/once", "non-streaming", "non-streaming/once"]
    assert headers(made["streaming"]) == [("idempotency-key", True, None)]
    assert headers(made["streaming/once"]) == []
    assert "reset," not in made["streaming/once"].route.retry_policy.retry_on + ","


def hedge(on, delay_s=None, answer_delay_s=None):
    return HedgeDecision(on=on, delay_s=delay_s, answer_delay_s=answer_delay_s, reason="", since_s=0)


def test_hedging_replaces_per_try_timeouts_while_decided():
    spec = {
        "hedging": {"enabled": True, "delay": "1s"},
        "timeouts": {"nonStreaming": {"perTry": "20s"}, "streaming": {"firstToken": "5s", "betweenTokens": "9s"}},
    }
    on = kinds(route(), spec, gated=True, hedge=hedge(True, 0.25, 3.0))
    assert on["streaming"].route.retry_policy.per_try_timeout == timedelta(seconds=0.25)
    assert on["non-streaming"].route.retry_policy.per_try_timeout == timedelta(seconds=3)
    only_streams = kinds(route(), spec, gated=True, hedge=hedge(True, 0.25))
    assert only_streams["streaming"].route.hedge_policy is not None
    assert only_streams["non-streaming"].route.hedge_policy is None
    off = kinds(route(), spec, gated=True, hedge=hedge(False, 0.25, 3.0))
    plain = kinds(route(), {**spec, "hedging": {"enabled": False}}, gated=True)
    assert off == plain
    assert off["non-streaming"].route.retry_policy.per_try_timeout == timedelta(seconds=20)
    ladder = DegradationState(level=1, reason="", since_s=0, hedging_off=True)
    assert kinds(route(), spec, gated=True, hedge=hedge(True, 0.25, 3.0), degradation=ladder) == plain


def test_timeouts_follow_the_decision():
    limits = TimeLimits(
        first_token_s=3.0,
        between_tokens_s=20.0,
        stream_total_s=600.0,
        per_try_s=40.0,
        total_s=100.0,
        reason="",
        since_s=0,
    )
    decided = kinds(route(), gated=True, limits=limits)
    written = {
        "timeouts": {
            "streaming": {"firstToken": "3s", "betweenTokens": "20s", "total": "600s"},
            "nonStreaming": {"perTry": "40s", "total": "100s"},
        }
    }
    assert decided == kinds(route(), written, gated=True)


def test_without_decision_the_policy_applies():
    spec = {"hedging": {"enabled": True, "delay": "1s"}}
    assert kinds(route(), spec, hedge=None, limits=None, degradation=None) == kinds(route(), spec)
    calm = DegradationState(level=0, reason="", since_s=0)
    assert kinds(route(), spec, degradation=calm) == kinds(route(), spec)


def test_maintenance_route_matches_all_conditions():
    ladder = DegradationState(level=4, reason="", since_s=0, maintenance="back at noon", max_tokens=10)
    made = kinds(route(model="m", pathPrefix="/v1"), degradation=ladder)
    assert list(made) == ["maintenance"]
    assert made["maintenance"].match.prefix == "/v1"
    assert [one.path[0].key for one in made["maintenance"].match.dynamic_metadata] == ["model"]


def test_load_shedding_of_long_answers_comes_first():
    ladder = DegradationState(level=3, reason="", since_s=0, max_tokens=512)
    made = kinds(route(model="m", stream=False), degradation=ladder)
    fields = ["max_tokens", "max_completion_tokens", "max_output_tokens"]  # the last one: Responses API
    assert list(made)[:3] == [f"too-long/{field}" for field in fields]
    for field in fields:
        model, stream, length = made[f"too-long/{field}"].match.dynamic_metadata
        assert (model.path[0].key, stream.path[0].key, stream.invert) == ("model", "stream", True)
        assert length.path[0].key == field
        assert length.value.double_match.range.start == 513


def test_stated_token_limit_is_one_route():
    ladder = DegradationState(level=3, reason="", since_s=0, max_tokens=512)
    listener = {"listener": {"port": 8080, "requestFields": "headers"}}
    made = kinds(route(more=listener, model="m", stream=False), degradation=ladder)
    assert list(made)[:2] == ["too-long/max_tokens", "non-streaming/once"]
    model, stream, length = made["too-long/max_tokens"].match.headers
    assert (model.name, stream.name, length.name) == tuple(
        f"x-switchgear-{field}" for field in ("model", "stream", "max-tokens")
    )
    assert (length.range_match.start, length.range_match.end) == (513, 10**9)
    assert not any(one.match.dynamic_metadata for one in made.values())


def test_reduced_answers_add_no_route_and_do_not_change_others():
    calm = DegradationState(level=3, reason="", since_s=0)
    reduced = replace(calm, max_tokens=512, reduces_answers=True)
    made, plain = kinds(route(), degradation=reduced), kinds(route(), degradation=calm)
    assert made.keys() == plain.keys()
    for name, one in made.items():
        assert one.typed_per_filter_config.keys() == {LUA_FILTER}
        assert [option.header.key for option in one.response_headers_to_add] == ["x-switchgear-answer-limit"]
        one.typed_per_filter_config.clear()
        one.response_headers_to_add.clear()
        assert one == plain[name]


def test_routes_with_model_change_come_first():
    more = {"fallbacks": ["f"], "modelChange": "opt-in"}
    made = kinds(route(more=more), models={"p": "big", "f": "small"})
    assert list(made) == [
        "streaming/any-model/once",
        "streaming/any-model",
        "non-streaming/any-model/once",
        "non-streaming/any-model",
        "streaming/once",
        "streaming",
        "non-streaming/once",
        "non-streaming",
    ]
    assert headers(made["streaming/any-model/once"])[0] == ("x-switchgear-allow-model-change", None, "true")
    small = made["streaming/any-model"].route.weighted_clusters.clusters[1]
    assert (small.name, len(small.response_headers_to_add)) == ("f", 2)
    assert made["streaming"].route.cluster == "p"


def test_model_split_names_each_model():
    more = {"pools": [{"pool": "p"}, {"pool": "new", "weight": 5}]}
    made = kinds(route(more=more), models={"p": "big", "new": "bigger"})
    first, second = made["streaming"].route.weighted_clusters.clusters
    assert (first.typed_per_filter_config, first.response_headers_to_add) == ({}, [])
    assert list(second.typed_per_filter_config) == ["envoy.filters.http.lua"]
    assert second.response_headers_to_add == []
