"""Which Envoy routes a ModelRoute becomes, in which order, with which limits."""

from datetime import timedelta

import pytest

from policies.resilience import ResilienceSpec
from policies.route import ModelRoute
from xds_server.translate.routes import by_specificity, envoy_routes


def route(name="r", **match):
    spec = {"listener": {"port": 8080}, "match": match, "pools": [{"pool": "p"}]}
    return ModelRoute.model_validate({"metadata": {"name": name}, "spec": spec})


def kinds(one, spec=None, *, gated=False):
    """Envoy routes by kind."""
    settings = ResilienceSpec.model_validate(spec or {})
    return {each.name.rpartition("/")[2]: each for each in envoy_routes(one, settings, gated=gated)}


def test_the_more_a_route_asks_for_the_earlier_it_stands():
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
def test_a_route_is_made_for_each_kind_of_request_it_matches(stream, expected):
    assert list(kinds(route(stream=stream))) == expected


def test_only_a_stream_has_idle_limits_and_only_the_rest_a_total_timeout():
    made = kinds(route(), {"timeouts": {"nonStreaming": {"total": "10s"}, "streaming": {"total": "60s"}}})
    stream, rest = made["streaming"].route, made["non-streaming"].route
    assert (stream.timeout, rest.timeout) == (timedelta(0), timedelta(seconds=10))
    assert stream.max_stream_duration.max_stream_duration == timedelta(seconds=60)
    assert rest.max_stream_duration.max_stream_duration == timedelta(0)
    assert stream.retry_policy.per_try_idle_timeout == timedelta(seconds=30)
    assert rest.retry_policy.per_try_idle_timeout is None


@pytest.mark.parametrize(
    ("gated", "first", "between", "per_try", "try_idle", "idle"),
    [
        (True, "5s", "2s", None, 5, 0),  # the idle timer runs before the first token, too, and does for both
        (True, "5s", "9s", 5, None, 26),  # four tries of 5 s and three pauses of 2 s may pass in silence
        (True, "5s", "30s", 5, None, 30),
        (True, None, "2s", None, 2, 0),
        (False, "5s", "2s", None, 5, 0),
        (False, "5s", "9s", None, 9, 0),
        (True, "5s", "0s", 5, None, 0),
        (False, "5s", "0s", None, None, 0),  # silence is allowed: nothing else can find a first token that is late
    ],
)
def test_limits_of_one_try_of_a_stream(gated, first, between, per_try, try_idle, idle):
    made = kinds(
        route(), {"timeouts": {"streaming": {"firstToken": first, "betweenTokens": between}}}, gated=gated
    )
    policy = made["streaming"].route.retry_policy
    assert policy.per_try_timeout == (None if per_try is None else timedelta(seconds=per_try))
    assert policy.per_try_idle_timeout == (None if try_idle is None else timedelta(seconds=try_idle))
    assert made["streaming"].route.idle_timeout == timedelta(seconds=idle)


def test_a_hedged_stream_is_watched_by_the_route():
    spec = {"hedging": {"enabled": True, "delay": "1s"}, "timeouts": {"streaming": {"betweenTokens": "9s"}}}
    stream = kinds(route(), spec, gated=True)["streaming"].route
    assert stream.retry_policy.per_try_timeout == timedelta(seconds=1)
    assert stream.retry_policy.per_try_idle_timeout is None
    assert stream.idle_timeout == timedelta(seconds=10)


@pytest.mark.parametrize("gated", [True, False])
def test_a_stream_is_hedged_only_behind_the_gate(gated):
    spec = {"hedging": {"enabled": True, "delay": "1s"}, "retries": {"attempts": 0}}
    made = kinds(route(), spec, gated=gated)
    assert (made["streaming"].route.hedge_policy is not None) is gated
    assert made["non-streaming"].route.hedge_policy.hedge_on_per_try_timeout
    policy = made["non-streaming"].route.retry_policy
    assert policy.per_try_timeout == timedelta(seconds=1)
    assert policy.num_retries == 1  # a hedge is a retry to Envoy


@pytest.mark.parametrize("retries", [{"attempts": 0}, {"conditions": [], "statuses": []}])
def test_hedges_without_retries_have_a_condition_that_never_holds(retries):
    policy = kinds(route(), {"hedging": {"enabled": True, "delay": "1s"}, "retries": retries})["non-streaming"]
    # Without any condition Envoy would not hedge, with a real one it would retry.
    assert policy.route.retry_policy.retry_on == "retriable-status-codes"
    assert policy.route.retry_policy.retriable_status_codes == []


def test_no_retries_keep_the_limits_of_the_only_try():
    made = kinds(route(), {"retries": {"attempts": 0}})["streaming"].route.retry_policy
    assert (made.retry_on, made.num_retries) == ("", 0)
    assert made.per_try_idle_timeout == timedelta(seconds=30)


def test_retry_after_is_honoured_only_where_wanted():
    assert kinds(route())["streaming"].route.retry_policy.rate_limited_retry_back_off is not None
    deaf = kinds(route(), {"retries": {"retryAfter": {"honour": False}}})
    assert deaf["streaming"].route.retry_policy.rate_limited_retry_back_off is None
