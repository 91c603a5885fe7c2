"""With real Helm the chart renders valid manifests and refuses invalid values."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy import render
from tests.cluster_double.rules import asked, broken
from tests.cluster_double.structural import defaulted
from tests.deploy import helm_rendering
from tests.istio.istio_schemas import as_json_schema

KUBERNETES = ("1.30", "1.37")
"""Oldest version the chart supports, and newest with a known schema."""

PUBLISHED = (
    "prometheus-operator/servicemonitors.yaml",
    "prometheus-operator/prometheusrules.yaml",
    "keda/keda.sh_scaledobjects.yaml",
    "gateway-api/standard/gateway.networking.k8s.io_httproutes.yaml",
)
"""Definitions of third-party kinds that the chart renders, in ``../shared/data``."""


@cache
def published() -> dict[tuple[str, str], Any]:
    """OpenAPI schemas of third-party kinds; empty where the definitions are missing."""
    paths = [render.ROOT.parent / "shared" / "data" / name for name in PUBLISHED]
    definitions = [yaml.load(path.read_text(), Loader=yaml.CSafeLoader) for path in paths if path.exists()]
    return {
        (f"{one['spec']['group']}/{version['name']}", one["spec"]["names"]["kind"]): version["schema"][
            "openAPIV3Schema"
        ]
        for one in definitions
        for version in one["spec"]["versions"]
    }


def _complaints(document: helm_rendering.Document) -> Iterator[str]:
    """All that a published definition has against a document, unknown fields and rules included."""
    schema = published()[document["apiVersion"], document["kind"]]
    bare = {key: value for key, value in document.items() if key not in {"apiVersion", "kind", "metadata"}}
    for error in jsonschema.Draft202012Validator(as_json_schema(schema)).iter_errors(bare):
        yield f"{error.json_path}: {error.message[:200]}"
    if asked():
        yield from broken(schema, defaulted(schema, document), None)


def _of_third_party(document: helm_rendering.Document) -> bool:
    return document["kind"] in {"ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"}


def _judge(document: helm_rendering.Document, version: str) -> None:
    if not document["apiVersion"].startswith("switchgear.dev/") and not _of_third_party(document):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("values", helm_rendering.VALUE_SETS)
def test_helm_lint_passes(values: str) -> None:
    answer = render.helm(
        "lint", "--strict", str(render.CHART), "--kube-version", render.KUBERNETES,
        "--values", str(render.values_file(values)),
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", helm_rendering.VALUE_SETS)
def test_rendered_manifests_match_kubernetes_schemas(values: str, version: str) -> None:
    found = helm_rendering.documents(values)
    assert found
    for document in found:
        _judge(document, version)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("path", helm_rendering.BY_HAND)
def test_handwritten_manifests_match_kubernetes_schemas(path: str, version: str) -> None:
    for document in helm_rendering.written(path):
        _judge(document, version)


def test_third_party_objects_match_published_definitions() -> None:
    if len({kind for _, kind in published()}) < len(PUBLISHED):
        pytest.skip(f"published definitions are missing: {', '.join(PUBLISHED)} belong into ../shared/data")
    rendered = [one for values in helm_rendering.VALUE_SETS for one in helm_rendering.documents(values)]
    written = [one for path in helm_rendering.BY_HAND for one in helm_rendering.written(path)]
    found = [one for one in (*rendered, *written) if _of_third_party(one)]
    assert {one["kind"] for one in found} == {kind for _, kind in published()}
    for document in found:
        assert list(_complaints(document)) == []
        misspelt = {**document, "spec": {**document["spec"], "misspelt": 1}}
        assert any("misspelt" in one for one in _complaints(misspelt))


def test_misspelt_field_fails_validation() -> None:
    document = json.loads(json.dumps(helm_rendering.of_kind(helm_rendering.documents("default"), "Deployment")[0]))
    document["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        _judge(document, KUBERNETES[-1])


def test_chart_and_wheel_have_the_same_version() -> None:
    import tomllib  # noqa: PLC0415

    project = tomllib.loads((render.ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((render.CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        # Refused by the schema.
        ("controlPlane: {replica: 3}", "replica is not allowed"),
        ("controlPlane: {replicas: many}", "controlPlane.replicas"),
        ("gateway: {listeners: []}", "gateway.listeners"),
        ("gateway: {listeners: [{name: http, port: 80}]}", "greater than or equal to 1024"),
        ("gateway: {zone: {from: guess}}", "gateway.zone.from"),
        ("image: {tag: latest}", "image"),
        ("image: {digest: 'sha256:abc'}", "image.digest"),
        ("engines: [{name: Chat, model: m}]", "engines.0.name"),
        ("engines: [{name: chat, model: m, drain: 5}]", "drain is not allowed"),
        ("engineDefaults: {name: chat}", "engineDefaults.name"),
        # Refused by templates.
        ("engines: [{model: m}]", "engines: name is required for each"),
        ("engines: [{name: chat}]", "engines[chat].model: required"),
        ("engines: [{name: a, model: m}, {name: a, model: m}]", "duplicate name a"),
        (
            "engines: [{name: a, model: m, drainSeconds: 600, terminationGracePeriodSeconds: 600}]",
            "engines[a].terminationGracePeriodSeconds: 600 is shorter than drainSeconds 600 + "
            "shutdownSeconds 30 + agent.shutdownSeconds 10 + 5: Kubernetes would kill the engine during "
            "its drain; set at least 645",
        ),
        ("policies: {readinessGates: true, writeStatus: false}", "needs policies.writeStatus, which is off"),
        ("engines: [{name: a, model: m, readinessGate: true}]", "policies.readinessGates is off"),
        ("engines: [{name: a, model: m, maxSurge: 0, maxUnavailable: 0}]", "no engine can be replaced"),
        (
            "engines: [{name: a, model: m, autoscaling: {kind: keda, scaleDownStabilizationSeconds: 60}}]",
            "60 is shorter than warmUpSeconds 300",
        ),
        (
            "engines: [{name: a, model: m, autoscaling: {kind: hpa, minReplicas: 9}}]",
            "minReplicas 9 exceeds maxReplicas 8",
        ),
        ("engines: [{name: a, model: m, gpus: 3, dataParallel: 2}]", "2 ranks cannot share 3 gpus evenly"),
        ("engines: [{name: a, model: m, slots: 65, gpus: 2, dataParallel: 2}]", "cannot share 65 slots evenly"),
        ("controlPlane: {terminationGracePeriodSeconds: 5}", "must exceed preStopSeconds (5)"),
        ("controlPlane: {pdb: {minAvailable: 2}}", "2 of 2 replicas blocks every node drain"),
        ("gateway: {pdb: {minAvailable: 2}}", "2 of 2 replicas blocks every node drain"),
        ("gateway: {autoscaling: {enabled: true, minReplicas: 11}}", "minReplicas 11 exceeds maxReplicas 10"),
        ("gateway: {drainSeconds: 5}", "must exceed lameDuckSeconds (10)"),
        ("gateway: {image: {tag: distroless-v1.40.0}}", "use a tag without distroless"),
        ("gateway: {zone: {from: value}}", "gateway.zone.value: required"),
        ("gateway: {ingress: {enabled: true}}", "gateway.ingress.hosts: required"),
        ("gateway: {httpRoute: {enabled: true}}", "gateway.httpRoute.parentRefs: required"),
        (
            "gateway: {ingress: {listener: grpc}}",
            "gateway.ingress.listener: no listener is called grpc; use one of http",
        ),
        (
            "gateway: {listeners: [{name: a, port: 10000}, {name: b, port: 10000}]}",
            "gateway.listeners: duplicate port 10000",
        ),
        (
            "gateway: {listeners: [{name: a, port: 9901}]}",
            "port 9901 is both a listener and the admin or health port",
        ),
        ("gateway: {healthPort: 9901}", "port 9901 is both adminPort and healthPort"),
        ("controlPlane: {adminPort: 18000}", "port 18000 is both xdsPort and adminPort"),
        ("engines: [{name: a, model: m, port: 18012}]", "engines[a].port: 18012 is a port of the agent"),
        (
            "{agent: {httpPort: 18012}, engines: [{name: a, model: m}]}",
            "agent: port 18012 is both httpPort and grpcPort",
        ),
        # Names in use, or invalid in Kubernetes.
        ("nameOverride: Gear_Switch", "nameOverride"),
        ("fullnameOverride: 1gear", "fullnameOverride"),
        (
            "{fullnameOverride: chat, engines: [{name: chat, model: m}]}",
            "engines[chat]: name chat is used by the control plane",
        ),
        (
            "{fullnameOverride: chat, engines: [{name: chat-gateway, model: m}]}",
            "engines[chat-gateway]: name chat-gateway is used by the control plane",
        ),
    ],
)
def test_invalid_values_are_refused_with_their_path(values: str, complaint: str, tmp_path: Path) -> None:
    assert complaint in helm_rendering.complaint(values, tmp_path)


def test_zone_from_pod_labels_needs_kubernetes_1_35(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("{insecure: true, gateway: {zone: {from: podLabels}}}")
    assert render.template(file).returncode == 0
    old = render.helm("template", "sg", str(render.CHART), "--kube-version", "1.34.0", "--values", str(file))
    assert "podLabels needs Kubernetes 1.35" in old.stderr


@pytest.mark.parametrize("pdb", ["pdb: null", "pdb: {minAvailable: null}"])
def test_null_disables_the_disruption_budget(pdb: str, tmp_path: Path) -> None:
    found = _rendered(f"{{insecure: true, controlPlane: {{{pdb}}}, gateway: {{{pdb}}}}}", tmp_path)
    assert not helm_rendering.of_kind(found, "PodDisruptionBudget")


def test_data_parallel_ranks_share_gpus_and_slots(tmp_path: Path) -> None:
    found = _rendered(
        "{insecure: true, engines: [{name: a, model: m, gpus: 4, dataParallel: 2, slots: 64}]}", tmp_path
    )
    (vllm,) = helm_rendering.named(found, "Deployment", "a")["spec"]["template"]["spec"]["containers"]
    assert {"--data-parallel-size=2", "--tensor-parallel-size=2", "--max-num-seqs=32"} <= set(vllm["args"])
    assert vllm["resources"]["limits"]["nvidia.com/gpu"] == 4


def test_rights_are_bound_to_a_given_service_account(tmp_path: Path) -> None:
    given = "serviceAccount: {create: false, name: %s}"
    found = _rendered(
        f"{{insecure: true, controlPlane: {{{given % 'ours'}}}, gateway: {{{given % 'theirs'}}}}}", tmp_path
    )
    assert not helm_rendering.of_kind(found, "ServiceAccount")
    accounts = {template["spec"]["serviceAccountName"] for _, template in helm_rendering.pods(found)}
    bound = {
        subject["name"]
        for one in helm_rendering.of_kind(found, "RoleBinding", "ClusterRoleBinding")
        for subject in one["subjects"]
    }
    assert accounts == bound == {"ours", "theirs"}


def test_routes_lead_to_ports_of_the_gateway_service() -> None:
    found = helm_rendering.documents("routes")
    offered = {
        one["port"] for one in helm_rendering.named(found, "Service", "switchgear-gateway")["spec"]["ports"]
    }
    (ingress,) = helm_rendering.of_kind(found, "Ingress")
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "switchgear-gateway", "port": {"number": 10000}}
    assert ingress["spec"]["tls"] == [{"secretName": "llm-tls", "hosts": [rule["host"]]}]
    (route,) = helm_rendering.of_kind(found, "HTTPRoute")
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert backend == {"name": "switchgear-gateway", "port": 10001}
    assert {10000, 10001} == offered


def test_every_value_marked_caution_is_set_for_production() -> None:
    text = (render.CHART / "values.yaml").read_text()
    production = yaml.safe_load(render.values_file("production").read_text())
    path: list[tuple[int, str]] = []
    marked = []
    caution = False
    for line in text.splitlines()[2:]:
        caution = caution or "# CAUTION: " in line
        if (key := re.match(r"( *)([A-Za-z]+):", line)) is not None:
            path = [*(one for one in path if one[0] < len(key[1])), (len(key[1]), key[2])]
            if caution:
                marked.append([name for _, name in path])
            caution = False
    assert ["insecure"] in marked
    assert len(marked) == text.count("# CAUTION: ")
    for names in marked:
        value = production
        for name in names:
            assert name in value, f"{'.'.join(names)}: marked CAUTION, not set in values-production.yaml"
            value = value[name]


def _rendered(values: str, folder: Path) -> Sequence[helm_rendering.Document]:
    file = folder / "values.yaml"
    file.write_text(values)
    answer = render.template(file)
    assert answer.returncode == 0, answer.stderr
    return helm_rendering.parsed(answer.stdout)


def test_values_and_schema_have_the_same_fields() -> None:
    schema = json.loads((render.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((render.CHART / "values.yaml").read_text())

    def compare(given: object, known: dict[str, object], place: str) -> None:
        properties = known.get("properties")
        if isinstance(given, dict) and isinstance(properties, dict):
            assert set(properties) - {"global"} == set(given), place
            for key, value in given.items():
                compare(value, properties[key], f"{place}.{key}")

    compare(values, schema, "values")
    one, defaults = (
        schema["definitions"]["engine"]["properties"],
        schema["properties"]["engineDefaults"]["properties"],
    )
    assert {key: value for key, value in one.items() if key != "name"} == {
        key: value for key, value in defaults.items() if key != "name"
    }
