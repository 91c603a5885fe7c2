"""The chart with the real Helm: it renders what Kubernetes takes, and refuses values that cannot work."""

import json
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy import render
from tests.deploy import helm_rendering

KUBERNETES = ("1.30", "1.37")
"""The oldest that the chart allows, and the newest whose schemas there are."""

# Kinds of others, of which the cluster's own schemas know nothing. Written down by hand: the fields we use, as the
# custom resource definitions of Prometheus Operator 0.84 and of KEDA name them. That is no proof that a
# definition would not object to something else; `kubectl apply --dry-run=server` is.
STRING_MAP = {"type": "object", "additionalProperties": {"type": "string"}}


def _closed(required: tuple[str, ...] = (), **properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


OTHERS = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _closed(
        ("selector", "endpoints"),
        selector=_closed(("matchLabels",), matchLabels=STRING_MAP),
        endpoints={
            "type": "array",
            "minItems": 1,
            "items": _closed(
                ("port",),
                port={"type": "string"},
                path={"type": "string", "pattern": "^/"},
                interval={"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
                scheme={"enum": ["http", "https"]},
                tlsConfig=_closed(
                    ("ca", "serverName"),
                    ca=_closed(
                        ("secret",),
                        secret=_closed(("name", "key"), name={"type": "string"}, key={"type": "string"}),
                    ),
                    serverName={"type": "string"},
                ),
            ),
        },
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _closed(
        ("groups",),
        groups={
            "type": "array",
            "minItems": 1,
            "items": _closed(
                ("name", "rules"),
                name={"type": "string"},
                rules={
                    "type": "array",
                    "items": {
                        **_closed(
                            ("expr",),
                            record={"type": "string"},
                            alert={"type": "string"},
                            expr={"type": "string"},
                            **{"for": {"type": "string", "pattern": "^[0-9]+(s|m|h)$"}},
                            labels=STRING_MAP,
                            annotations=STRING_MAP,
                        ),
                        "oneOf": [{"required": ["record"]}, {"required": ["alert"]}],
                    },
                },
            ),
        },
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): _closed(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=_closed(
            ("name",), apiVersion={"type": "string"}, kind={"type": "string"}, name={"type": "string"}
        ),
        minReplicaCount={"type": "integer"},
        maxReplicaCount={"type": "integer"},
        pollingInterval={"type": "integer"},
        advanced=_closed(horizontalPodAutoscalerConfig=_closed(behavior={"type": "object"})),
        triggers={
            "type": "array",
            "minItems": 1,
            "items": _closed(
                ("type", "metadata"),
                type={"const": "prometheus"},
                name={"type": "string"},
                metricType={"enum": ["Value", "AverageValue"]},
                # KEDA takes nothing but text here.
                metadata=STRING_MAP,
            ),
        },
    ),
}


def _judge(document: helm_rendering.Document, version: str) -> None:
    others = OTHERS.get((document["apiVersion"], document["kind"]))
    if others is not None:
        jsonschema.validate(document["spec"], others)
        if document["kind"] == "ScaledObject":
            _judge_behavior(document, version)
    elif not document["apiVersion"].startswith("switchgear.dev/"):
        kubernetes_validate.validate(document, version, strict=True)


def _judge_behavior(scaled: helm_rendering.Document, version: str) -> None:
    """KEDA hands its block on to a HorizontalPodAutoscaler, of which there is a schema."""
    config = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "x"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "x"}, "maxReplicas": 2, **config},
    }
    kubernetes_validate.validate(scaler, version, strict=True)


@pytest.mark.parametrize("values", helm_rendering.VALUE_SETS)
def test_helm_finds_nothing_to_say_of_the_chart(values: str) -> None:
    answer = render.helm(
        "lint", "--strict", str(render.CHART), "--kube-version", render.KUBERNETES,
        "--values", str(render.values_file(values)),
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", helm_rendering.VALUE_SETS)
def test_kubernetes_takes_every_manifest(values: str, version: str) -> None:
    found = helm_rendering.documents(values)
    assert found
    for document in found:
        _judge(document, version)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("path", helm_rendering.BY_HAND)
def test_kubernetes_takes_what_was_written_by_hand(path: str, version: str) -> None:
    for document in helm_rendering.written(path):
        _judge(document, version)


def test_a_misspelt_field_would_be_found() -> None:
    document = json.loads(json.dumps(helm_rendering.of_kind(helm_rendering.documents("default"), "Deployment")[0]))
    document["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        _judge(document, KUBERNETES[-1])


def test_chart_and_wheel_have_one_version() -> None:
    import tomllib  # noqa: PLC0415

    project = tomllib.loads((render.ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((render.CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        # What the schema knows.
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
        # What only the whole of the values can tell.
        ("engines: [{model: m}]", "engines: each needs a name"),
        ("engines: [{name: chat}]", "engines[chat].model: say which model"),
        ("engines: [{name: a, model: m}, {name: a, model: m}]", "two are called a"),
        (
            "engines: [{name: a, model: m, drainSeconds: 600, terminationGracePeriodSeconds: 600}]",
            "engines[a].terminationGracePeriodSeconds: 600 is shorter than drainSeconds 600 + "
            "shutdownSeconds 30 + agent.shutdownSeconds 10 + 5: Kubernetes would kill the engine in the "
            "middle of its drain. "
            "Say at least 645",
        ),
        ("policies: {readinessGates: true, writeStatus: false}", "policies.writeStatus is off"),
        ("engines: [{name: a, model: m, readinessGate: true}]", "policies.readinessGates is off"),
        ("engines: [{name: a, model: m, maxSurge: 0, maxUnavailable: 0}]", "no engine can ever be replaced"),
        (
            "engines: [{name: a, model: m, autoscaling: {kind: keda, scaleDownStabilizationSeconds: 60}}]",
            "60 is shorter than warmUpSeconds 300",
        ),
        (
            "engines: [{name: a, model: m, autoscaling: {kind: hpa, minReplicas: 9}}]",
            "minReplicas 9 is above maxReplicas 8",
        ),
        ("controlPlane: {terminationGracePeriodSeconds: 5}", "leaves nothing after preStopSeconds, 5"),
        ("controlPlane: {pdb: {minAvailable: 2}}", "2 of 2 replicas would let no node be drained"),
        ("gateway: {pdb: {minAvailable: 2}}", "2 of 2 replicas would let no node be drained"),
        ("gateway: {autoscaling: {enabled: true, minReplicas: 11}}", "minReplicas 11 is above maxReplicas 10"),
        ("gateway: {drainSeconds: 5}", "must be above lameDuckSeconds, 10"),
        ("gateway: {image: {tag: distroless-v1.40.0}}", "take the image without distroless"),
        ("gateway: {zone: {from: value}}", "gateway.zone.value: say the zone"),
        (
            "gateway: {listeners: [{name: a, port: 10000}, {name: b, port: 10000}]}",
            "gateway.listeners: port 10000 twice",
        ),
        (
            "gateway: {listeners: [{name: a, port: 9901}]}",
            "port 9901 is a listener's and the admin or health port",
        ),
        ("gateway: {healthPort: 9901}", "port 9901 is both the admin and the health port"),
        ("controlPlane: {adminPort: 18000}", "port 18000 is both for Envoys and for the admin"),
        ("engines: [{name: a, model: m, port: 18012}]", "engines[a].port: the agent beside it listens on 18012"),
        (
            "{agent: {httpPort: 18012}, engines: [{name: a, model: m}]}",
            "agent: port 18012 is both httpPort and grpcPort",
        ),
        # Names that are taken, or that Kubernetes would not take.
        ("nameOverride: Gear_Switch", "nameOverride"),
        ("fullnameOverride: 1gear", "fullnameOverride"),
        (
            "{fullnameOverride: chat, engines: [{name: chat, model: m}]}",
            "engines[chat]: the control plane or its gateways are called chat",
        ),
        (
            "{fullnameOverride: chat, engines: [{name: chat-gateway, model: m}]}",
            "engines[chat-gateway]: the control plane or its gateways are called chat-gateway",
        ),
    ],
)
def test_values_that_cannot_work_are_refused_with_their_place(values: str, complaint: str, tmp_path: Path) -> None:
    assert complaint in helm_rendering.complaint(values, tmp_path)


def test_pod_labels_need_a_kubernetes_that_sets_them(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("{insecure: true, gateway: {zone: {from: podLabels}}}")
    assert render.template(file).returncode == 0
    old = render.helm("template", "sg", str(render.CHART), "--kube-version", "1.34.0", "--values", str(file))
    assert "podLabels needs Kubernetes 1.35" in old.stderr


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    schema = json.loads((render.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((render.CHART / "values.yaml").read_text())

    def compare(said: object, known: dict[str, object], place: str) -> None:
        properties = known.get("properties")
        if isinstance(said, dict) and isinstance(properties, dict):
            assert set(properties) - {"global"} == set(said), place
            for key, value in said.items():
                compare(value, properties[key], f"{place}.{key}")

    compare(values, schema, "values")
    one, defaults = (
        schema["definitions"]["engine"]["properties"],
        schema["properties"]["engineDefaults"]["properties"],
    )
    assert {key: value for key, value in one.items() if key != "name"} == {
        key: value for key, value in defaults.items() if key != "name"
    }
