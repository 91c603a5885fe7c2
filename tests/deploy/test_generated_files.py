"""Files that are made from others are what would be made now."""

import json
import re
from pathlib import Path

import pytest
import yaml

from deploy import render


def test_manifests_and_copies_are_in_step() -> None:
    assert render.stale_files() == [], "run `make manifests`"


def test_a_change_of_the_chart_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = render.MANIFESTS[0]
    other = render.Manifest(path=one.path, values="namespaced")
    monkeypatch.setattr(render, "MANIFESTS", (other, *render.MANIFESTS[1:]))
    assert render.stale_files() == [f"deploy/{one.path}"]


def test_what_nothing_makes_any_more_would_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "MANIFESTS", render.MANIFESTS[1:])
    assert f"deploy/{render.MANIFESTS[0].path}" not in render.stale_files()
    assert Path(render.DEPLOY / "manifests" / "whole-cluster.yaml") in render.orphaned_files()


def test_what_cannot_be_rendered_is_no_manifest() -> None:
    with pytest.raises(RuntimeError, match="could not find template"):
        render.rendered(render.Manifest(path="x", values="default", only=("templates/none.yaml",)))


def test_the_queries_of_both_autoscalers_ask_for_the_same_series() -> None:
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
        said = str(target.get("value", target.get("averageValue")))
        value = float(said.removesuffix("m")) / (1000 if said.endswith("m") else 1)
        assert value == float(trigger["metadata"]["threshold"])


def _series(query: str) -> list[str]:
    """The series and the functions of a query, in order."""
    return re.findall(r"(?:switchgear|vllm)[\w:]+|histogram_quantile\([\d.]+|rate|\bor\b", query)


def test_series_of_ours_in_queries_exist() -> None:
    figures = (render.ROOT / "xds_server" / "ledger" / "figures.py").read_text()
    text = (render.DEPLOY / "autoscaling" / "keda.yaml").read_text()
    for name in ("pressure_ratio", "utilization_ratio"):
        assert f"switchgear_pool_{name}" in text
        assert json.dumps(name) in figures
