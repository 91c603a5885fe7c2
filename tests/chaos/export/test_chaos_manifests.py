"""Cluster manifests: only known fields; every fault is mapped or has a reason."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from chaos.export.chaos_mesh import chaos_mesh
from chaos.export.litmus import litmus, why_not_in_litmus
from chaos.export.manifest_export import ManifestExport, cluster_context
from chaos.faults.pod_labels import ClusterNames
from chaos.scenario.scenario_library import scenario_library
from chaos.scenario.scenario_model import Scenario
from chaos.scenario.scenario_schema import fault_kinds

IN_MESH = [kind for kind, fault in fault_kinds().items() if not fault.not_in_clusters]
IN_LITMUS = [kind for kind, fault in fault_kinds().items() if not why_not_in_litmus(fault)]
POD = {"selector", "mode", "value"}
CONTAINERS = POD | {"containerNames"}
HTTP = {
    "abort",
    "delay",
    "replace",
    "patch",
    "port",
    "path",
    "method",
    "code",
    "request_headers",
    "response_headers",
}
# Source: chaos-mesh/chaos-mesh, api/v1alpha1/*_types.go.
MESH = {
    "PodChaos": CONTAINERS | {"action", "gracePeriod"},
    "NetworkChaos": POD | {"action", "delay", "loss", "bandwidth", "direction", "target", "externalTargets"},
    "HTTPChaos": POD | HTTP | {"target"},
    "StressChaos": CONTAINERS | {"stressors", "stressngStressors"},
    "TimeChaos": CONTAINERS | {"timeOffset", "clockIds"},
}
MESH_NEEDS = {
    "PodChaos": {"action"},
    "NetworkChaos": {"action", "direction", "target"},
    "HTTPChaos": {"target", "port"},
    "StressChaos": {"stressors"},
    "TimeChaos": {"timeOffset"},
}
SELECTOR = {
    "namespaces",
    "nodes",
    "pods",
    "nodeSelectors",
    "fieldSelectors",
    "labelSelectors",
    "expressionSelectors",
}
# Source: litmuschaos/chaos-charts, faults/kubernetes/*/fault.yaml.
EVERY_RUN = {
    "TOTAL_CHAOS_DURATION",
    "RAMP_TIME",
    "PODS_AFFECTED_PERC",
    "SEQUENCE",
    "NODE_LABEL",
    "TARGET_CONTAINER",
}
HTTP_RUN = {"TARGET_SERVICE_PORT", "TOXICITY"}
LITMUS = {
    "pod-delete": {"FORCE", "CHAOS_INTERVAL"},
    "container-kill": {"SIGNAL", "CHAOS_INTERVAL"},
    "pod-network-latency": {"NETWORK_LATENCY", "JITTER"},
    "pod-network-loss": {"NETWORK_PACKET_LOSS_PERCENTAGE"},
    "pod-network-rate-limit": {"NETWORK_BANDWIDTH", "BURST", "LIMIT"},
    "pod-http-reset-peer": HTTP_RUN | {"RESET_TIMEOUT"},
    "pod-http-status-code": HTTP_RUN | {"STATUS_CODE"},
    "pod-http-latency": HTTP_RUN | {"LATENCY"},
    "pod-cpu-hog": {"CPU_CORES", "CPU_LOAD"},
}


def scenario(kind: str, target: Mapping[str, Any] | None = None, **strike: Any) -> Scenario:
    """One fault of this kind, with its defaults."""
    expected = {"zone": "b"} if kind in {"partition", "zone_loss"} else {}
    text = {
        "metadata": {"name": "one"},
        "spec": {
            "title": "t",
            "incident": "i",
            "topology": {"zones": ["a", "b"], "proxies": [{"count": 1}, {"zone": "b"}]},
            "faults": [
                {
                    "fault": {"kind": kind},
                    "at": "8s",
                    "lasts": "10s",
                    "target": {**expected, **(target or {})},
                    **strike,
                }
            ],
        },
    }
    return Scenario.model_validate(text)


def templates(exported: ManifestExport) -> dict[str, dict[str, Any]]:
    (workflow,) = yaml.safe_load_all(exported.text())
    assert workflow["apiVersion"] == "chaos-mesh.org/v1alpha1"
    found = {one["name"]: one for one in workflow["spec"]["templates"]}
    assert len(found) == len(workflow["spec"]["templates"])
    assert workflow["spec"]["entry"] in found
    children = [name for one in found.values() for name in one.get("children", ())]
    assert sorted([*children, workflow["spec"]["entry"]]) == sorted(found)
    return found


def chaos_in(template: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind = template["templateType"]
    if kind in {"Serial", "Parallel", "Suspend"}:
        return None
    (name,) = set(template) - {"name", "templateType", "deadline"}
    assert name == ("httpChaos" if kind == "HTTPChaos" else kind[0].lower() + kind[1:])
    fields: Mapping[str, Any] = template[name]
    return fields


@pytest.mark.parametrize("kind", fault_kinds())
def test_every_fault_is_mapped_or_has_a_reason(kind: str) -> None:
    (strike,) = scenario(kind).spec.faults
    context = cluster_context(scenario(kind).spec, strike, ClusterNames())
    assert bool(tuple(strike.fault.chaos_mesh(context))) != bool(strike.fault.not_in_clusters)
    assert bool(strike.fault.litmus(context)) != bool(why_not_in_litmus(strike.fault))


@pytest.mark.parametrize("kind", IN_MESH)
def test_chaos_mesh_knows_every_field(kind: str) -> None:
    found = templates(chaos_mesh(scenario(kind)))
    objects = [(one["templateType"], chaos_in(one)) for one in found.values() if chaos_in(one)]
    assert objects
    for sort, fields in objects:
        assert fields is not None
        assert set(fields) <= MESH[sort]
        assert set(fields) >= MESH_NEEDS[sort] | {"selector", "mode"}
        assert set(fields["selector"]) <= SELECTOR
        assert ("value" in fields) == (fields["mode"] in {"fixed", "fixed-percent"})


@pytest.mark.parametrize("kind", IN_LITMUS)
def test_litmus_knows_every_variable(kind: str) -> None:
    (engine,) = yaml.safe_load_all(litmus(scenario(kind)).text())
    assert (engine["apiVersion"], engine["kind"]) == ("litmuschaos.io/v1alpha1", "ChaosEngine")
    (run,) = engine["spec"]["experiments"]
    env = {one["name"]: one["value"] for one in run["spec"]["components"]["env"]}
    assert set(env) <= EVERY_RUN | LITMUS[run["name"]]
    assert set(env) >= LITMUS[run["name"]]
    assert all(isinstance(one, str) for one in env.values())
    assert (env["TOTAL_CHAOS_DURATION"], env["RAMP_TIME"]) == ("10", "8")


@pytest.mark.parametrize("name", scenario_library())
def test_library_exports_with_remarks_for_gaps(name: str) -> None:
    one = scenario_library()[name].scenario
    for exported, mappings in ((chaos_mesh(one), IN_MESH), (litmus(one), IN_LITMUS)):
        list(yaml.safe_load_all(exported.text()))
        lost = {remark.about for remark in exported.remarks if not remark.mapped}
        for number, strike in enumerate(one.spec.faults):
            shown = strike.name or f"{strike.fault.kind}-{number}"
            assert (shown in lost) == (strike.fault.kind not in mappings)
        assert {"load", "hypothesis"} <= lost


def test_fault_waits_starts_and_ends() -> None:
    found = templates(chaos_mesh(scenario("latency", {"fraction": 0.25})))
    serial = found["latency-0"]
    wait, bites = (found[name] for name in serial["children"])
    assert (wait["templateType"], wait["deadline"]) == ("Suspend", "8s")
    assert bites["deadline"] == "10s"
    fields = bites["networkChaos"]
    assert (fields["mode"], fields["value"]) == ("fixed-percent", "25")
    assert fields["delay"] == {"latency": "100ms", "jitter": "0s", "correlation": "0"}
    assert fields["target"]["selector"]["labelSelectors"] == {"app.kubernetes.io/name": "envoy"}


def test_in_turn_faults_follow_each_other_with_pauses() -> None:
    found = templates(chaos_mesh(scenario("crash", inTurn=True, pausePercent=20)))
    steps = [found[name] for name in found["crash-0"]["children"]]
    assert [one["deadline"] for one in steps[1:5]] == ["1s", "250ms", "1s", "250ms"]
    assert [one["templateType"] for one in steps[:3]] == ["Suspend", "PodChaos", "Suspend"]
    assert len(steps) == 1 + 2 * 8


def test_partition_cuts_other_zones_and_the_control_plane() -> None:
    found = templates(chaos_mesh(scenario("partition")))
    cut = [fields for one in found.values() if (fields := chaos_in(one))]
    ends = [
        (
            fields["selector"]["labelSelectors"]["app.kubernetes.io/name"],
            fields["target"]["selector"]["labelSelectors"]["app.kubernetes.io/name"],
            fields["target"]["selector"].get("nodeSelectors", {}).get("topology.kubernetes.io/zone", "everywhere"),
        )
        for fields in cut
    ]
    assert ends == [
        ("vllm", "envoy", "a"),
        ("vllm", "switchgear", "everywhere"),
        ("envoy", "vllm", "a"),
        ("envoy", "switchgear", "everywhere"),
    ]
    assert all(one["selector"]["nodeSelectors"] == {"topology.kubernetes.io/zone": "b"} for one in cut)


def test_cluster_names_are_used() -> None:
    names = ClusterNames(namespace="llm", engines={"app": "model"}, engine_port=9000, workload="statefulset")
    found = templates(chaos_mesh(scenario("engine_error"), names))
    fields = found["engine-error-0-bites"]["httpChaos"]
    assert fields["selector"] == {"namespaces": ["llm"], "labelSelectors": {"app": "model"}}
    assert (fields["port"], fields["replace"]) == (9000, {"code": 500})
    (engine,) = litmus(scenario("engine_error"), names).manifests
    assert engine["spec"]["appinfo"] == {"appns": "llm", "applabel": "app=model", "appkind": "statefulset"}


def test_unmapped_faults_give_reasons_and_no_manifest() -> None:
    found = chaos_mesh(scenario("gpu_xid"))
    assert found.manifests == ()
    assert list(yaml.safe_load_all(found.text())) == []
    assert "gpu_xid-0: not mapped: it needs the lab's NVML double" in found.text()
