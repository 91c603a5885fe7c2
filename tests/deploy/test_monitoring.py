"""What the chart brings for Prometheus and Grafana is what stands in deploy/monitoring."""

import json
from pathlib import Path

import yaml

from deploy import render
from deploy.monitoring.dashboards import DASHBOARDS
from deploy.monitoring.rules import RUNBOOKS
from tests.deploy.rendering import complaint, documents, named, of_kind

ELSEWHERE = "https://docs.example/switchgear/runbooks"


def test_the_rules_are_those_of_the_file_with_runbooks_of_ones_own() -> None:
    rule = named(documents("everything"), "PrometheusRule", "switchgear")
    text = (render.DEPLOY / "monitoring" / "rules.yaml").read_text().replace(RUNBOOKS, ELSEWHERE)
    assert rule["spec"] == yaml.safe_load(text)
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    alerts = [one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]
    assert alerts
    assert all(one["annotations"]["runbook_url"].startswith(ELSEWHERE) for one in alerts)


def test_the_dashboards_are_those_of_the_folder_and_found_by_the_sidecar() -> None:
    found = named(documents("everything"), "ConfigMap", "switchgear-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert set(found["data"]) == {f"switchgear-{one.name}.json" for one in DASHBOARDS}
    for name, text in found["data"].items():
        path = render.DEPLOY / "monitoring" / "dashboards" / name.removeprefix("switchgear-")
        assert json.loads(text) == json.loads(path.read_text().replace(RUNBOOKS, ELSEWHERE))


def test_nothing_of_it_unless_asked_for() -> None:
    assert of_kind(documents("default"), "PrometheusRule") == []
    assert not [
        one for one in of_kind(documents("default"), "ConfigMap") if "dashboards" in one["metadata"]["name"]
    ]


def test_a_place_of_runbooks_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "runbooks" in complaint("monitoring: {rules: {enabled: true, runbooks: docs/}}", tmp_path)


def test_a_file_that_nothing_makes_any_more_would_be_removed() -> None:
    made = set(render.monitoring())
    assert set(render.DEPLOY.glob("**/monitoring/dashboards/*.json")) <= made
    assert not set(render.left_over()) & made
