"""Nothing that Istio's published schemas refuse, whatever the policies say."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from istio.export.export import exported
from istio.export.place import Place
from policies.findings import PolicyErrors
from policies.load import load, load_contents
from policies.model import PolicySet
from tests.istio.generated import documents
from tests.istio.published import complaints

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "policies" / "examples").glob("*.yaml"))
GOLDEN = sorted((ROOT / "tests" / "golden").glob("*/policy.yaml"))
PLACES = [
    Place(),
    Place(gateway="ingress/public", proxies=3),
    Place(namespace="llm", host="models.example.com", filter_namespace="llm", telemetry=False),
]
FAULT = {"delay": {"fixedDelay": "2s", "percentage": {"value": 5.0}}}


def judge(policies: PolicySet, place: Place) -> None:
    result = exported(policies, place, dict.fromkeys(policies.routes, FAULT))
    assert [complaint for one in result.objects for complaint in complaints(one)] == []
    names = [(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in result.objects]  # type: ignore[index]  # metadata is a mapping
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, _, name in names)


@pytest.mark.parametrize("place", PLACES, ids=["mesh", "gateway", "host"])
@pytest.mark.parametrize("path", [*EXAMPLES, *GOLDEN], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_of_policies_at_hand(path: Path, place: Place) -> None:
    judge(load([path]), place)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(said=documents(), place=st.sampled_from(PLACES))
def test_of_policies_nobody_wrote(said: list[dict[str, Any]], place: Place) -> None:
    text = "\n---\n".join(map(json.dumps, said))
    try:
        policies = load_contents({Path("policy.yaml"): text.encode()})
    except PolicyErrors:
        assume(False)
    judge(policies, place)


def test_what_the_schemas_refuse_is_seen() -> None:
    policies = load([EXAMPLES[0]])
    rule = next(one for one in exported(policies, Place()).objects if one["kind"] == "DestinationRule")
    spec: Any = rule["spec"]
    for broken in (
        {**spec, "hots": "x"},
        {**spec, "trafficPolicy": {"loadBalancer": {"simple": "BEST"}}},
        {**spec, "trafficPolicy": {"connectionPool": {"http": {"http2MaxRequests": 2**31}}}},
    ):
        assert list(complaints({**rule, "spec": broken}))
