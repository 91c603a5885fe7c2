"""Derived timeouts are longer for proxies that can cut requests of a hung engine."""

from dataclasses import replace

from xds_server.decide.decisions import PoolDecisions, TimeLimits
from xds_server.model.fleet import declared
from xds_server.model.memo import Memo
from xds_server.model.type_urls import ROUTE
from xds_server.model.view import View
from xds_server.translate.view_resources import translate

POOL = """kind: EnginePool
metadata: {name: big}
spec: {model: big, endpoints: [{address: 10.0.0.1, port: 1, name: e1}]}"""
PATH = "kind: ModelRoute\nmetadata: {name: r}\nspec: {listener: {port: 8080}, pools: [{pool: big}]}"
LIMITS = TimeLimits(
    first_token_s=None,
    between_tokens_s=30.0,
    stream_total_s=900.0,
    per_try_s=3.0,
    total_s=300.0,
    reason="",
    since_s=0.0,
)


def longest_tries(policies, decided, *documents):
    """Seconds allowed for a non-streaming try by a proxy that cannot cut, and by one that can."""
    policy_set = policies(POOL, PATH, *documents)
    fleet = declared(policy_set)
    pool = PoolDecisions(engines={}, zones={}, ceilings={}, limits=LIMITS)
    decisions, memo, found = replace(decided(fleet), pools={"big": pool}), Memo(), []
    for cuts in (False, True):
        items = translate(policy_set, fleet, decisions, View(cuts=cuts), memo)
        (routes,) = [one.message for one in items if one.type_url == ROUTE]
        (unary,) = [one for one in routes.virtual_hosts[0].routes if one.name.endswith("/non-streaming")]
        found.append(unary.route.retry_policy.per_try_timeout.total_seconds())
    return found


def test_derived_timeout_is_three_times_longer_with_internal_listeners(policies, decided):
    assert longest_tries(policies, decided) == [3.0, 9.0]


def test_policy_timeout_is_the_same_for_every_proxy(policies, decided):
    document = "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {timeouts: {nonStreaming: {perTry: 3s}}}"
    assert longest_tries(policies, decided, document) == [3.0, 3.0]


def test_timeout_ends_requests_if_the_policy_cuts_none(policies, decided):
    document = "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {breaker: {cutHung: false}}"
    assert longest_tries(policies, decided, document) == [3.0, 3.0]
