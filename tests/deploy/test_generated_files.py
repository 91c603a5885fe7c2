"""Generated files are current; the list is in ``deploy/generated.py``."""

import re
from pathlib import Path

import pytest
import yaml

from deploy import generated, render
from xds_server.metrics.metric_table import TABLE


def test_generated_files_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert generated.main(["--check"]) == 0, capsys.readouterr().err


def test_stale_missing_and_orphaned_files_are_listed_and_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {tmp_path / "current.md": "1", tmp_path / "stale.md": "2", tmp_path / "folder" / "missing.md": "3"}
    orphan = tmp_path / "orphan.md"
    for path, text in ((tmp_path / "current.md", "1"), (tmp_path / "stale.md", "old"), (orphan, "old")):
        path.write_text(text)
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    monkeypatch.setattr(generated, "GENERATORS", (lambda: wanted,))
    monkeypatch.setattr(render, "orphaned_files", lambda: [path for path in (orphan,) if path.exists()])
    assert generated.main(["--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{name} is stale: run `make generated`" for name in ("stale.md", "folder/missing.md", "orphan.md")
    ]
    assert generated.main([]) == 0
    assert generated.main(["--check"]) == 0
    assert {path: path.read_text() for path in wanted} == wanted
    assert not orphan.exists()


def test_tracked_files_that_name_their_generator_are_in_the_list() -> None:
    """Files with a generated-by header have a generator."""
    pages = {*(render.ROOT / "docs").glob("*.md"), *render.DEPLOY.rglob("*.yaml")}
    marked = {
        path for path in pages if re.search(r"^# (Made|Generated|Rendered) ", path.read_text(), re.MULTILINE)
    }
    assert len(marked) > 5
    assert marked <= {*generated.generated_files()}


def test_changed_chart_makes_manifests_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    one = render.MANIFESTS[0]
    other = render.Manifest(path=one.path, values="namespaced")
    monkeypatch.setattr(render, "MANIFESTS", (other, *render.MANIFESTS[1:]))
    assert generated.stale_files(render.generated_files()) == [render.DEPLOY / one.path]


def test_manifest_without_generator_is_orphaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "MANIFESTS", render.MANIFESTS[1:])
    assert render.DEPLOY / "manifests" / "whole-cluster.yaml" not in render.generated_files()
    assert Path(render.DEPLOY / "manifests" / "whole-cluster.yaml") in render.orphaned_files()


def test_render_failure_raises() -> None:
    with pytest.raises(RuntimeError, match="could not find template"):
        render.rendered(render.Manifest(path="x", values="default", only=("templates/none.yaml",)))


def test_both_autoscalers_query_the_same_series() -> None:
    keda = yaml.safe_load((render.DEPLOY / "autoscaling" / "keda.yaml").read_text())
    hpa = yaml.safe_load((render.DEPLOY / "autoscaling" / "hpa.yaml").read_text())
    adapter = yaml.safe_load((render.DEPLOY / "autoscaling" / "prometheus-adapter.yaml").read_text())
    offered = {rule["name"]["as"]: rule["metricsQuery"] for rule in adapter["rules"]["external"]}
    wanted = [metric["external"]["metric"]["name"] for metric in hpa["spec"]["metrics"]]
    assert set(wanted) == set(offered)
    series = [_series(trigger["metadata"]["query"]) for trigger in keda["spec"]["triggers"]]
    assert series == [_series(offered[name]) for name in wanted]
    assert hpa["spec"]["behavior"] == (keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"])
    for trigger, metric in zip(keda["spec"]["triggers"], hpa["spec"]["metrics"], strict=True):
        target = metric["external"]["target"]
        assert target["type"] == trigger["metricType"]
        text = str(target.get("value", target.get("averageValue")))
        value = float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
        assert value == float(trigger["metadata"]["threshold"])


def _series(query: str) -> list[str]:
    """Series and functions of a query, in order."""
    return re.findall(r"(?:switchgear|vllm)[\w:]+|histogram_quantile\([\d.]+|rate|\bor\b", query)


def test_switchgear_series_in_queries_exist() -> None:
    text = (render.DEPLOY / "autoscaling" / "keda.yaml").read_text()
    for name in ("pressure_ratio", "utilization_ratio"):
        assert f"switchgear_pool_{name}" in text
        assert f"switchgear_pool_{name}" in TABLE
