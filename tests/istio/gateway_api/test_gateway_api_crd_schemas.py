"""Nothing that the published schemas refuse, whatever the policies say."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from istio.gateway_api.gateway_export import export_to_gateway_api
from istio.gateway_api.gateway_objects import GatewayTarget, gateway_duration
from istio.imports.source_values import seconds
from policies.findings import PolicyErrors
from policies.load import load, load_contents
from policies.model import PolicySet
from tests.istio.gateway_api.gateway_api_schemas import complaints
from tests.istio.generated import documents

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "policies" / "examples").glob("*.yaml"))
GOLDEN = sorted((ROOT / "tests" / "golden").glob("*/policy.yaml"))
SITES = [
    GatewayTarget(),
    GatewayTarget(plain=True),
    GatewayTarget(plain=True, experimental=True),
    GatewayTarget(namespace="llm", gateway="edge", gateway_namespace="infra", proxies=3),
]


def judge(policies: PolicySet, site: GatewayTarget) -> None:
    result = export_to_gateway_api(policies, site)
    channel = "experimental" if site.experimental else "standard"
    assert [complaint for one in result.objects for complaint in complaints(one, channel)] == []
    names = [(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in result.objects]  # type: ignore[index]  # metadata is a mapping
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("site", SITES, ids=["envoy-gateway", "plain", "plain-experimental", "elsewhere"])
@pytest.mark.parametrize("path", [*EXAMPLES, *GOLDEN], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_objects_of_example_policies_fit_the_schemas(path: Path, site: GatewayTarget) -> None:
    judge(load([path]), site)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(said=documents(), site=st.sampled_from(SITES))
def test_objects_of_generated_policies_fit_the_schemas(said: list[dict[str, Any]], site: GatewayTarget) -> None:
    text = "\n---\n".join(map(json.dumps, said))
    try:
        policies = load_contents({Path("policy.yaml"): text.encode()})
    except PolicyErrors:
        assume(False)
    judge(policies, site)


def test_the_same_policies_are_the_same_objects() -> None:
    assert export_to_gateway_api(load(EXAMPLES[:1]), GatewayTarget()) == export_to_gateway_api(
        load(EXAMPLES[:1]), GatewayTarget()
    )


def test_schema_violations_are_detected() -> None:
    objects = {
        str(one["kind"]): one for one in export_to_gateway_api(load([EXAMPLES[0]]), GatewayTarget()).objects
    }
    policy: Any = objects["BackendTrafficPolicy"]["spec"]
    route: Any = objects["HTTPRoute"]["spec"]
    for kind, spec in (
        ("BackendTrafficPolicy", {**policy, "unknown": 1}),
        ("HTTPRoute", {**route, "rules": [{**route["rules"][0], "retry": {"attempts": 1}}]}),
        ("BackendTrafficPolicy", {**policy, "retry": {"retryOn": {"triggers": ["whatever"]}}}),
        ("BackendTrafficPolicy", {**policy, "timeout": {"tcp": {"connectTimeout": "0.25s"}}}),
        (
            "HTTPRoute",
            {**route, "rules": [{**route["rules"][0], "timeouts": {"request": "1s", "backendRequest": "2s"}}]},
        ),
        (
            "HTTPRoute",
            {**route, "rules": [{**route["rules"][0], "backendRefs": [{"name": "x", "kind": "Service"}]}]},
        ),
    ):
        assert list(complaints({**objects[kind], "spec": spec}))


@given(st.floats(0, 10 * 365 * 24 * 3600))
def test_durations_mean_the_same_to_the_millisecond(value: float) -> None:
    there = seconds(gateway_duration(value))
    assert there is not None
    assert abs(there - value) <= 0.0011
    assert (there == 0) == (value == 0)
