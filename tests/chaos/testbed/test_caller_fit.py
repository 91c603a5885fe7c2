"""Tenants and deadlines of policies, fitted to a scenario's groups of callers."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from chaos.load.request_sender import Arrival, LoadTarget, RequestTemplate
from chaos.scenario.experiment_plan import Experiment
from chaos.testbed.blueprint import lab_blueprint
from chaos.testbed.caller_fit import caller_limits, lacking_limits
from chaos.testbed.policy_documents import LabEngineAddress, policy_documents
from chaos.testbed.policy_fit import policy_fit
from chaos.testbed.static_envoy import PLAIN
from chaos.testbed.subjects import PolicySubject, StaticSubject
from policies.listener import Listener
from policies.load import load_contents
from policies.quantity import format_duration
from tests.chaos.lab.experiments import experiment

TENANTS = {
    "header": "x-team",
    "mode": "shadow",
    "named": [
        {"name": "search", "requests": 100, "tokens": 60_000, "per": "minute", "burst": 10},
        {"name": "lab", "requests": 5},
        {"name": "rest", "requests": 7},
    ],
    "others": {"requests": 1},
}
CALLERS = [
    {"name": "noisy", "demand": 3, "timesQuota": 10},
    {"name": "calm", "demand": 1, "timesQuota": 0.5},
]
ASKING = RequestTemplate(model="m")


def listener(**fields: Any) -> Listener:
    return Listener.model_validate({"port": 8080, **fields})


def asking(callers: list[dict[str, Any]] = CALLERS, **load: Any) -> Experiment:
    return experiment(proxies=2, load={"perSecond": 40, "callers": callers, **load})


def named(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in found["tenants"]["named"]}


def test_quotas_follow_from_the_load_and_the_rest_is_kept() -> None:
    found = caller_limits(listener(tenants=TENANTS), asking(), ASKING, time_scale=6.0)
    quotas = named(found)
    # 3 of 4 parts of 40/s, divided by 10; the burst at two proxies is at least 4.
    assert quotas["search"]["requests"] == 3 * 3600
    assert (quotas["search"]["per"], quotas["search"]["burst"]) == ("hour", 4)
    assert quotas["lab"] == {"name": "lab", "requests": 20 * 3600, "per": "hour", "burst": 20}
    assert quotas["rest"] == {"name": "rest", "requests": 7}
    kept = {name: found["tenants"][name] for name in ("header", "mode", "others", "trustHeader")}
    assert kept == {"header": "x-team", "mode": "shadow", "others": {"requests": 1}, "trustHeader": True}
    assert listener(**found)


def test_quota_that_is_not_tested_admits_twice_the_requests() -> None:
    load = {"outputTokens": {"shortest": 40, "longest": 40}}
    request = Arrival(at_s=0, request_id="", target=LoadTarget(url=""), streaming=False, max_tokens=40)
    tokens = len(ASKING.body(request)) / 4 + 40
    by_requests = named(caller_limits(listener(tenants=TENANTS), asking(**load), ASKING, 1.0))["search"]
    assert by_requests["tokens"] == round(60 * tokens * 3600)
    by_tokens = [{**CALLERS[0], "unit": "tokens"}, CALLERS[1]]
    quotas = named(caller_limits(listener(tenants=TENANTS), asking(by_tokens, **load), ASKING, 1.0))["search"]
    assert quotas["tokens"] == round(3 * tokens * 3600)
    assert quotas["tokensBurst"] == round(4 * tokens)
    assert quotas["requests"] == 60 * 3600


def test_scenario_without_groups_leaves_the_limits_out() -> None:
    limits = listener(tenants=TENANTS, deadline={"header": "x-request-timeout-ms"})
    assert caller_limits(limits, experiment(), ASKING, 1.0) == {}


@pytest.mark.parametrize(
    ("deadline", "header", "kept"),
    [
        ({"header": "x-wait-ms", "max": "60s"}, {"x-wait-ms": "150"}, {"header": "x-wait-ms", "max": "10s"}),
        ({"header": "x-wait", "form": "s"}, {"x-wait": "150"}, {"header": "x-wait", "form": "ms", "max": "0s"}),
        ({"header": "grpc-timeout"}, {"grpc-timeout": "150m"}, {"header": "grpc-timeout", "max": "0s"}),
    ],
)
def test_deadlines_are_in_service_times_of_the_lab(
    deadline: dict[str, Any], header: dict[str, str], kept: dict[str, Any]
) -> None:
    hurried = [{"name": "hurried", "timesService": 0.3}]
    found = caller_limits(listener(deadline=deadline), asking(hurried), ASKING, time_scale=6.0)
    assert found == {"deadline": kept}
    plan = lab_blueprint(asking(hurried), subject({"port": 8080, "deadline": deadline}))
    assert plan.asking.group_headers == {"hurried": header}


def test_requests_carry_the_names_of_the_policies() -> None:
    plan = lab_blueprint(asking(), subject({"port": 8080, "tenants": {**TENANTS, "trustHeader": True}}))
    assert plan.asking.group_headers == {"noisy": {"x-team": "search"}, "calm": {"x-team": "lab"}}
    plain = lab_blueprint(asking(), StaticSubject(name="envoy", static=PLAIN))
    assert plain.asking.group_headers == {"noisy": {"x-tenant": "noisy"}, "calm": {"x-tenant": "calm"}}


def test_listener_without_the_limits_lacks_them() -> None:
    load = asking().spec.load
    assert lacking_limits(load, listener(), ()) == "2 named tenants, and the route has none"
    assert lacking_limits(load, listener(tenants=TENANTS), ()) == ""
    by_tokens = asking([CALLERS[0], {**CALLERS[1], "unit": "tokens"}]).spec.load
    assert (
        lacking_limits(by_tokens, listener(tenants=TENANTS), ())
        == "quotas of tokens, and these tenants have none: lab"
    )
    hurried = asking([{"name": "hurried", "timesService": 0.3}]).spec.load
    assert lacking_limits(hurried, listener(), ()) == "a deadline, and the route's listener has none"
    assert lacking_limits(hurried, listener(deadline={"header": "x-wait-ms"}), ()) == ""


def subject(listens: dict[str, Any], more: str = "") -> PolicySubject:
    """Policies of a pool with this listener; its engines are as fast as those of the lab."""
    text = f"""\
kind: EnginePool
metadata: {{name: chat}}
spec: {{model: m, serviceTime: 500ms, longestServiceTime: 2s, endpoints: [{{address: 10.0.0.1, port: 80}}]}}
---
kind: ModelRoute
metadata: {{name: chat}}
spec: {{listener: {listens}, pools: [{{pool: chat}}]}}
"""
    head = "apiVersion: switchgear.dev/v1alpha1\n"
    written = head + text.replace("---\n", f"---\n{head}") + more
    return PolicySubject(name="p", policies=load_contents({Path("p.yaml"): written.encode()}))


SHARING = [
    {"name": "noisy", "demand": 10, "timesShare": 10, "begins": "5s"},
    {"name": "calm", "demand": 1, "timesShare": 0.5},
]


def test_tenants_with_fair_shares_keep_their_weights_and_get_no_quota() -> None:
    tenants = {
        **TENANTS,
        "fairShares": True,
        "named": [{"name": "search", "weight": 2, "minPercent": 5, "requests": 9}, {"name": "lab"}],
    }
    found = caller_limits(listener(tenants=tenants), asking(SHARING), ASKING, time_scale=1.0)
    assert found["tenants"]["named"] == [{"name": "search", "weight": 2.0, "minPercent": 5.0}, {"name": "lab"}]
    assert found["tenants"]["fairShares"]
    assert lacking_limits(asking(SHARING).spec.load, listener(tenants=tenants), ()) == ""
    without = {**tenants, "fairShares": False}
    assert "fair shares" in lacking_limits(asking(SHARING).spec.load, listener(tenants=without), ())


LARGE = [{"name": "short", "demand": 19}, {"name": "long", "demand": 1, "timesTokens": 15}]
SIZED = """\
---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: large}
spec: {model: m, serviceTime: 9s, longestServiceTime: 20s, endpoints: [{address: 10.0.0.2, port: 80}]}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: large}
spec: {listener: {port: 8080}, match: {tokensAbove: 4000}, pools: [{pool: large}]}
"""


def sized() -> PolicySubject:
    return subject({"port": 8080}, more=SIZED)


def test_size_of_large_requests_is_between_those_of_the_load() -> None:
    lab = lab_blueprint(asking(LARGE, outputTokens={"shortest": 20, "longest": 60}), sized())
    assert lab.fitting is not None
    addresses = {one.name: LabEngineAddress(port=9000) for pool in lab.pools for one in pool.engines}
    documents = {
        (one["kind"], one["metadata"]["name"]): one["spec"]
        for one in yaml.safe_load_all(policy_documents(lab.fitting, addresses, {8080: 18080}))
    }
    found = documents["ModelRoute", "large"]["match"]["tokensAbove"]
    assert 60 < found < 15 * 20
    # As fast as the other engines, for requests of fifteen times the work.
    usual, large = (pool.service_s for pool in lab.pools)
    assert large == usual
    assert documents["EnginePool", "large"]["serviceTime"] == format_duration(15 * usual)
    assert lacking_limits(asking(LARGE).spec.load, lab.fitting.listener, lab.fitting.routes) == ""


def test_load_without_large_requests_keeps_the_size() -> None:
    lab = lab_blueprint(asking(), sized())
    assert lab.fitting is not None
    addresses = {one.name: LabEngineAddress(port=9000) for pool in lab.pools for one in pool.engines}
    assert "tokensAbove: 4000" in policy_documents(lab.fitting, addresses, {8080: 18080})


def test_large_requests_need_a_route() -> None:
    assert "none has match.tokensAbove" in lacking_limits(asking(LARGE).spec.load, listener(), ())


def test_pool_of_large_requests_alone_is_rehearsed_with_the_usual_load() -> None:
    policies = sized()
    fitting = policy_fit(policies.policies, asking([]), pool="large")
    assert [one.metadata.name for one in fitting.routes] == ["large"]
    assert fitting.routes[0].spec.match.tokens_above is None
    assert policy_fit(policies.policies, asking(LARGE)).pool == "chat"
