"""Dashboards are valid: queries parse, series exist, links resolve."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.monitoring import dashboards
from deploy.monitoring.dashboards import DASHBOARDS
from deploy.monitoring.grafana import Dashboard, Panel, dashboard_json
from deploy.monitoring.prometheus_rules import ALERTS, metric, recordings
from deploy.render import DEPLOY
from tests.monitoring.promtool import needed, promtool
from xds_server.metrics.metric_table import TABLE

FOLDER = DEPLOY / "monitoring" / "dashboards"
PAGES = [json.loads(dashboard_json(one)) for one in DASHBOARDS]
COLUMNS = 24


def queries(page: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in page["panels"] for target in panel["targets"]]


def filled(query: str) -> str:
    """The query with Grafana variables substituted."""
    return query.replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$pool", "a").replace(
        "$engine", "r1"
    )  # fmt: skip


def test_dashboard_files_are_current() -> None:
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == {
        f"{one.name}.json": dashboard_json(one) for one in DASHBOARDS
    }, "run `make generated`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page["uid"])
def test_dashboard_layout_and_variables_are_consistent(page: dict[str, Any]) -> None:
    assert len({panel["id"] for panel in page["panels"]}) == len(page["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in page["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} overlaps another"
        assert max(x for x, _ in cells) < COLUMNS
        taken |= cells
        assert panel["targets"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["type"] in {"timeseries", "stat", "heatmap"}
    names = {one["name"] for one in page["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(page["panels"]))) - {"__rate_interval"}
    assert used <= names, "undefined variable"
    assert names <= used, "unused variable"


def test_every_queried_series_and_label_exists() -> None:
    recorded = {one.record for one in recordings()}
    for page in PAGES:
        for query in queries(page):
            for name, matchers in re.findall(r"([\w:]*switchgear_[\w:]+)\{([^}]*)\}", query):
                row = TABLE.get(name) or TABLE.get(name.removesuffix("_bucket"))
                assert row or name in recorded, name
                for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers):
                    if row is None or label == "namespace":
                        continue
                    assert label in row.labels, f"{name} has no label {label}"
                    assert operator == "=~" or not row.labels[label] or value in row.labels[label]


def test_every_legend_label_is_in_its_query() -> None:
    for page in PAGES:
        for panel in page["panels"]:
            for target in panel["targets"]:
                for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                    kept = re.findall(r"by \(([^)]*)\)", target["expr"])
                    assert not kept or label in kept[0], f"{panel['title']}: {label}"


def test_links_point_to_runbooks_of_alerts() -> None:
    pages = [json.loads(dashboard_json(one, "https://docs.example/runbooks")) for one in DASHBOARDS]
    links = {link["url"] for page in pages for p in page["panels"] for link in p["links"]}
    assert links <= {f"https://docs.example/runbooks/{one.name}/" for one in ALERTS}
    assert len(links) > 12
    assert not [link for page in PAGES for p in page["panels"] for link in p["links"]], "no base URL, no links"
    named = {name for page in PAGES for p in page["panels"] for name in re.findall(r"(\w+)\.md", p["description"])}
    assert named == {link.split("/")[-2] for link in links}


@pytest.mark.parametrize(
    "panel",
    [Panel(title="x", queries=(("up", ""),), alert="SwitchgearNothing")],
    ids=["unknown alert"],
)
def test_unknown_alert_or_metric_raises_key_error(panel: Panel) -> None:
    with pytest.raises(KeyError):
        dashboard_json(Dashboard(name="x", title="x", panels=(panel,)))
    with pytest.raises(KeyError):
        metric("no_such_metric")
    with pytest.raises(KeyError):
        dashboards._recorded("nothing")


@needed
def test_promtool_parses_every_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}:query", "expr": filled(query)}
        for number, query in enumerate(query for page in PAGES for query in queries(page))
    ]
    assert len(rules) > 40
    path = tmp_path / "queries.json"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    code, output = promtool("check", "rules", str(path))
    assert code == 0, output
    rules[0]["expr"] += " +"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert promtool("check", "rules", str(path))[0] != 0
