"""Nothing that Istio's published schemas refuse, whatever the policies say."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from istio.export.istio_export import export_to_istio
from istio.export.istio_objects import IstioTarget
from policies.findings import PolicyErrors
from policies.load import load, load_contents
from policies.model import PolicySet
from tests.istio.generated import documents
from tests.istio.istio_schemas import complaints

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "policies" / "examples").glob("*.yaml"))
GOLDEN = sorted((ROOT / "tests" / "golden").glob("*/policy.yaml"))
PLACES = [
    IstioTarget(),
    IstioTarget(gateway="ingress/public", proxies=3),
    IstioTarget(namespace="llm", host="models.example.com", filter_namespace="llm", telemetry=False),
]
FAULT = {"delay": {"fixedDelay": "2s", "percentage": {"value": 5.0}}}


def judge(policies: PolicySet, place: IstioTarget) -> None:
    result = export_to_istio(policies, place, dict.fromkeys(policies.routes, FAULT))
    assert [complaint for one in result.objects for complaint in complaints(one)] == []
    names = [(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in result.objects]  # type: ignore[index]  # metadata is a mapping
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, _, name in names)


@pytest.mark.parametrize("place", PLACES, ids=["mesh", "gateway", "host"])
@pytest.mark.parametrize("path", [*EXAMPLES, *GOLDEN], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_objects_of_example_policies_fit_the_schemas(path: Path, place: IstioTarget) -> None:
    judge(load([path]), place)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(said=documents(), place=st.sampled_from(PLACES))
def test_objects_of_generated_policies_fit_the_schemas(said: list[dict[str, Any]], place: IstioTarget) -> None:
    text = "\n---\n".join(map(json.dumps, said))
    try:
        policies = load_contents({Path("policy.yaml"): text.encode()})
    except PolicyErrors:
        assume(False)
    judge(policies, place)


def test_schema_violations_are_detected() -> None:
    policies = load([EXAMPLES[0]])
    rule = next(
        one for one in export_to_istio(policies, IstioTarget()).objects if one["kind"] == "DestinationRule"
    )
    spec: Any = rule["spec"]
    for broken in (
        {**spec, "hots": "x"},
        {**spec, "trafficPolicy": {"loadBalancer": {"simple": "BEST"}}},
        {**spec, "trafficPolicy": {"connectionPool": {"http": {"http2MaxRequests": 2**31}}}},
    ):
        assert list(complaints({**rule, "spec": broken}))
