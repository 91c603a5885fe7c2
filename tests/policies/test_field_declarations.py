"""Every field that holds a value declares what carries it, and its checks reach the lints and the definitions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.crd.crd import crd
from policies.crd.structural_schema import blocks
from policies.document import Spec, declaration
from policies.fidelity import Fidelity
from policies.field_checks import CelRule, FieldCheck, ListKeys, ValueLint
from policies.field_targets import Xds, takes_effect
from policies.lints.lint import lint
from policies.load import load_contents
from policies.model import KINDS
from policies.schema import json_schema, leaf_targets, leaves

CARRIERS = {
    "",
    "BackendTLSPolicy", "BackendTrafficPolicy", "DestinationRule", "EndpointSlice", "EnvoyFilter", "HTTPRoute",
    "InferencePool", "ServiceEntry", "VirtualService", "WorkloadEntry",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_holds_a_value_declares_what_carries_it(kind: str) -> None:
    assert [doc.path for doc in leaves(kind) if doc.targets is None] == []
    for path, targets in leaf_targets(kind).items():
        for outcome in (targets.istio, targets.gateway_api):
            assert len(outcome.how) > 5, path
            assert outcome.target in CARRIERS, path
            assert not (outcome.fidelity is Fidelity.LOST and outcome.target), path


def test_a_field_that_declares_nothing_is_carried_as_its_block() -> None:
    carried = leaf_targets("ResiliencePolicy")
    assert carried["spec.limits.priorities.interactive.sharePercent"].istio.target == "DestinationRule"
    assert carried["spec.limits.priorities.batch.sharePercent"].istio.target == "EnvoyFilter"


def test_the_schema_shows_units_and_reasons_and_no_targets() -> None:
    text = str(json_schema())
    assert "x-unit" in text
    assert "x-why" in text
    for hidden in ("EnvoyFilter", "HTTPRoute", "targets", "x-live"):
        assert hidden not in text


def models() -> Iterator[type[Spec]]:
    waiting: list[type[Spec]] = [Spec]
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if one.__module__.startswith("policies."):
            yield one


def checks() -> Iterator[FieldCheck]:
    for model in models():
        for field in model.model_fields.values():
            yield from declaration(field).checks


def test_every_declared_rule_is_in_a_definition() -> None:
    said: list[dict[str, Any]] = []
    keyed = 0
    for kind in KINDS:
        document = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        said += document.get("x-kubernetes-validations", ())
        for _, schema in blocks(document["properties"]["spec"]):
            said += schema.get("x-kubernetes-validations", ())
            keyed += "x-kubernetes-list-type" in schema
    declared = list(checks())
    assert [one for one in declared if isinstance(one, CelRule) and one.to_schema() not in said] == []
    assert keyed == sum(isinstance(one, ListKeys) for one in declared) > 0


POOL = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: m
  probe: {enabled: false}
  endpoints: [{address: 10.0.0.1, port: 1}, {address: 10.0.0.2, port: 1}]
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {name: default}
spec: {breaker: {capacityFloorPercent: %s}, degradation: {marginPercent: 0}}
"""


@pytest.mark.parametrize(("floor", "code"), [("0", "SG123"), ("100", "SG124")])
def test_advice_on_a_value_comes_from_the_field(floor: str, code: str) -> None:
    found = {(one.code, one.path) for one in lint(load_contents({Path("p.yaml"): (POOL % floor).encode()}))}
    assert found == {
        ("SG130", ""),
        (code, "spec.breaker.capacityFloorPercent"),
        ("SG129", "spec.probe.enabled"),
        ("SG144", "spec.degradation.marginPercent"),
    }
    assert {one.code for one in checks() if isinstance(one, ValueLint)} == {
        "SG123",
        "SG124",
        "SG129",
        "SG144",
        "SG175",
    }


def test_hot_and_cold() -> None:
    assert not (Xds.EDS | Xds.RTDS | Xds.RDS | Xds.SDS).cold
    assert (Xds.RDS | Xds.CDS).cold
    assert Xds.LDS.cold
    assert takes_effect(Xds.RTDS | Xds.RDS) == "RTDS, RDS; hot: requests in flight, counts and ejections survive"
    assert takes_effect(Xds.RDS | Xds.CDS).startswith("RDS, CDS; cold: ")
    assert takes_effect(Xds.NONE).startswith("no resource")
