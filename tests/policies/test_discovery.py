"""Engines from a cluster: valid settings, and the errors of invalid ones."""

from pathlib import Path

import pytest

from policies.discovery import engine_finding, rejected_object_finding
from policies.findings import PolicyErrors
from policies.lints.lint import lint
from policies.load import load_contents
from policies.model import PolicySet
from policies.schema import fields


def loaded(block: str) -> PolicySet:
    text = (
        "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: a}\n"
        f"spec: {{model: m, kubernetes: {block}}}\n"
    )
    return load_contents({Path("a.yaml"): text.encode()})


def problem(block: str) -> str:
    with pytest.raises(PolicyErrors) as caught:
        loaded(block)
    (error,) = caught.value.exceptions
    return f"{error.code} {error.path}: {error.message}"


def test_a_service_and_a_port_by_name_or_number() -> None:
    found = loaded("{service: vllm, port: http, agentPort: 9000}").pools["a"].spec.kubernetes
    assert found is not None
    assert (found.service, found.selector, found.port, found.agent_port) == ("vllm", {}, "http", 9000)


def test_labels_in_place_of_a_service() -> None:
    found = loaded("{selector: {app: vllm}, port: 8000}").pools["a"].spec.kubernetes
    assert found is not None
    assert (found.service, found.selector, found.port) == (None, {"app": "vllm"}, 8000)


def test_a_pool_without_the_block_finds_no_engines() -> None:
    text = "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: a}\nspec: {model: m}\n"
    assert load_contents({Path("a.yaml"): text.encode()}).pools["a"].spec.kubernetes is None


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("{port: 80}", "SG040 spec.kubernetes: no service and no selector"),
        ("{service: a, selector: {b: c}, port: 80}", "SG040 spec.kubernetes: service and selector exclude"),
        ("{service: a}", "SG024 spec.kubernetes.port: port is missing"),
        ('{service: a, port: "80"}', "SG026 spec.kubernetes.port: '80' is text"),
        ("{service: a, port: 0}", "SG026 spec.kubernetes.port: 0 is not a port"),
        ("{service: a, port: true}", "SG026 spec.kubernetes.port: True is not a port"),
        ("{service: a, port: Http}", "SG026 spec.kubernetes.port: 'Http' is not a port"),
        ("{service: a, port: 80, agentPort: 70000}", "SG026 spec.kubernetes.agentPort: 70000 is not a port"),
    ],
)
def test_invalid_block_is_refused_with_its_field(block: str, said: str) -> None:
    assert problem(block).startswith(said)


def test_no_advice_to_list_engines_that_the_cluster_lists() -> None:
    assert {one.code for one in lint(loaded("{service: a, port: 80}"))}.isdisjoint({"SG121", "SG122"})


def test_the_reference_says_what_a_port_may_be() -> None:
    for name in ("port", "agentPort"):
        doc = fields("EnginePool")[f"spec.kubernetes.{name}"]
        assert (doc.type, doc.allowed) == ("number or name", "a port number, 1 to 65535, or the name of a port")


def test_odd_cluster_settings_have_a_code_and_a_location() -> None:
    odd = engine_finding("ns/EnginePool/a", "pod x is left out: no port named http")
    assert (odd.code, str(odd)) == (
        "SG150",
        "ns/EnginePool/a: SG150: spec.kubernetes: pod x is left out: no port named http",
    )
    with pytest.raises(PolicyErrors) as caught:
        loaded("{port: 80}")
    for serving, said in ((True, "the last accepted spec stays in force"), (False, "not in force")):
        finding = rejected_object_finding("ns/EnginePool/a", caught.value.exceptions[0], serving=serving)
        assert finding.code == "SG151"
        assert said in finding.message
        assert "SG040: no service and no selector" in finding.message
