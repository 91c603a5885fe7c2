"""Certificates in the chart: file modes, volume names and notes."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from deploy import render
from policies.load import load
from tests.deploy import helm_rendering
from tests.deploy.helm_rendering import Document

LONGEST_NAME: Final = "a" * 63
VALUES: Final[Mapping[str, Any]] = {
    "tls": {"controlPlane": "cp", "gateway": "gw", "agents": "ag", "engineSecrets": [LONGEST_NAME, "b"]},
    "engineDefaults": {"tls": {"secret": "engines", "serverName": "chat.inference.svc"}},
    "engines": [
        {"name": "chat", "model": "Qwen/Qwen3-8B"},
        {"name": "user", "model": "m", "securityContext": {"runAsUser": 1000}},
    ],
}


def _rendered(folder: Path, **more: Any) -> Sequence[Document]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump({**VALUES, **more}))
    answer = render.template(file)
    assert answer.returncode == 0, answer.stderr
    return helm_rendering.parsed(answer.stdout)


def _secrets(found: Sequence[Document], deployment: str) -> Mapping[str, Document]:
    spec = helm_rendering.named(found, "Deployment", deployment)["spec"]["template"]["spec"]
    return {one["name"]: one["secret"] for one in spec["volumes"] if "secret" in one}


@pytest.mark.parametrize("deployment", ["switchgear", "switchgear-gateway"])
def test_keys_are_readable_only_by_the_pod_group(deployment: str, tmp_path: Path) -> None:
    found = _rendered(tmp_path)
    assert {one["defaultMode"] for one in _secrets(found, deployment).values()} == {0o440}
    security = helm_rendering.named(found, "Deployment", deployment)["spec"]["template"]["spec"]["securityContext"]
    assert security["fsGroup"] == security["runAsGroup"]


def test_engine_key_is_root_only_if_the_engine_runs_as_root(tmp_path: Path) -> None:
    found = _rendered(tmp_path)
    assert _secrets(found, "chat")["engine-certificate"]["defaultMode"] == 0o400
    assert "defaultMode" not in _secrets(found, "user")["engine-certificate"], (
        "a non-root engine could not read it"
    )
    assert "defaultMode" not in _secrets(found, "chat")["certificate"], "the agent runs as another user"


def test_volume_name_is_valid_for_a_long_secret_name(tmp_path: Path) -> None:
    found = _rendered(tmp_path)
    assert LONGEST_NAME in {one["secretName"] for one in _secrets(found, "switchgear").values()}
    spec = helm_rendering.named(found, "Deployment", "switchgear")["spec"]["template"]["spec"]
    assert max(len(one["name"]) for one in spec["volumes"]) <= 63
    (server,) = spec["containers"]
    mounted = {one["mountPath"]: one["name"] for one in server["volumeMounts"]}
    assert _secrets(found, "switchgear")[mounted["/etc/switchgear/secrets/b"]]["secretName"] == "b"


def test_additional_egress_is_allowed(tmp_path: Path) -> None:
    collector = {"ports": [{"protocol": "TCP", "port": 4318}]}
    before = helm_rendering.named(_rendered(tmp_path), "NetworkPolicy", "switchgear")["spec"]["egress"]
    found = _rendered(tmp_path, controlPlane={"networkPolicy": {"egress": [collector]}})
    assert helm_rendering.named(found, "NetworkPolicy", "switchgear")["spec"]["egress"] == [*before, collector]


def test_custom_engine_ports_are_allowed(tmp_path: Path) -> None:
    engines = [{"name": "chat", "model": "m", "port": 8443}]
    found = _rendered(tmp_path, engines=engines, agent={"grpcPort": 28012})
    for name, ports in (("switchgear", {8000, 18012, 8443, 28012}), ("switchgear-gateway", {8000, 8443})):
        way = helm_rendering.named(found, "NetworkPolicy", name)["spec"]["egress"][-1]
        assert {one["port"] for one in way["ports"]} == ports
        assert len(way["ports"]) == len(ports)


def test_service_monitor_without_open_metrics_is_refused(tmp_path: Path) -> None:
    values = (
        "{tls: {controlPlane: a, gateway: b, openMetrics: false}, controlPlane: {serviceMonitor: {enabled: true}}}"
    )
    assert "which /metrics requires without tls.openMetrics" in helm_rendering.complaint(values, tmp_path)


def test_notes_show_valid_pools(tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(render.CHART, chart)
    # `helm template` does not render notes, so render them as a template.
    (chart / "templates" / "NOTES.txt").rename(chart / "files" / "notes")
    (chart / "templates" / "notes.yaml").write_text('text: {{ tpl (.Files.Get "files/notes") . | quote }}\n')
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(dict(VALUES)))
    answer = render.helm(
        "template", "switchgear", str(chart), "--kube-version", render.KUBERNETES,
        "--values", str(tmp_path / "values.yaml"), "--show-only", "templates/notes.yaml",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    lines = yaml.safe_load(answer.stdout)["text"].splitlines()
    shown = [yaml.safe_load(line)["spec"] for line in lines if line.startswith("  spec: ")]
    assert len(shown) == 2
    (tmp_path / "policies").mkdir()
    for number, spec in enumerate(shown):
        spec["tls"]["secret"] = spec["tls"]["secret"].lower()
        pool = {
            "apiVersion": "switchgear.dev/v1alpha1",
            "kind": "EnginePool",
            "metadata": {"name": f"p{number}"},
            "spec": spec,
        }
        (tmp_path / "policies" / f"{number}.yaml").write_text(yaml.safe_dump(pool))
    assert load([tmp_path / "policies"]).pools["p0"].spec.tls is not None
