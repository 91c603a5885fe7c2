"""The chart's rules and dashboards match deploy/monitoring."""

import json
from pathlib import Path

import yaml

from deploy import render
from deploy.monitoring.dashboards import DASHBOARDS
from deploy.monitoring.grafana import dashboard_json
from deploy.monitoring.prometheus_rules import rules_yaml
from tests.deploy.helm_rendering import complaint, documents, named, of_kind, parsed

SHOWN = (("PrometheusRule", "switchgear"), ("ConfigMap", "switchgear-dashboards"))
ELSEWHERE = "https://docs.example/switchgear/runbooks"


def test_rules_match_the_file_with_runbook_base_url() -> None:
    rule = named(documents("everything"), "PrometheusRule", "switchgear")
    assert rule["spec"] == yaml.safe_load(rules_yaml(ELSEWHERE))
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    alerts = [one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]
    assert alerts
    assert all(one["annotations"]["runbook_url"].startswith(ELSEWHERE) for one in alerts)


def test_dashboards_match_the_folder_and_have_the_sidecar_label() -> None:
    found = named(documents("everything"), "ConfigMap", "switchgear-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert set(found["data"]) == {f"switchgear-{one.name}.json" for one in DASHBOARDS}
    for one in DASHBOARDS:
        text = found["data"][f"switchgear-{one.name}.json"]
        assert json.loads(text) == json.loads(dashboard_json(one, ELSEWHERE))
        assert ELSEWHERE in text


def test_rules_and_dashboards_have_no_url_without_base_url(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("insecure: true\nmonitoring: {rules: {enabled: true}, dashboards: {enabled: true}}\n")
    made = parsed(render.template(values).stdout)
    rule, pages = (named(made, kind, name) for kind, name in SHOWN)
    assert rule["spec"] == yaml.safe_load((render.DEPLOY / "monitoring" / "rules.yaml").read_text())
    for name, text in pages["data"].items():
        path = render.DEPLOY / "monitoring" / "dashboards" / name.removeprefix("switchgear-")
        assert json.loads(text) == json.loads(path.read_text())
    assert not [text for text in (str(rule), *pages["data"].values()) if "://" in text]


def test_rules_and_dashboards_are_off_by_default() -> None:
    assert of_kind(documents("default"), "PrometheusRule") == []
    assert not [
        one for one in of_kind(documents("default"), "ConfigMap") if "dashboards" in one["metadata"]["name"]
    ]


def test_invalid_runbook_base_url_is_refused(tmp_path: Path) -> None:
    assert "runbookUrl" in complaint("monitoring: {rules: {enabled: true, runbookUrl: docs/}}", tmp_path)


def test_orphaned_dashboard_files_are_listed_for_removal() -> None:
    made = set(render.monitoring())
    assert set(render.DEPLOY.glob("**/monitoring/dashboards/*.json")) <= made
    assert not set(render.orphaned_files()) & made
