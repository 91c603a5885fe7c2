"""Every query of rules and panels has a result over the series a server can expose."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from deploy.monitoring.dashboards import DASHBOARDS
from deploy.monitoring.grafana import dashboard_json
from deploy.monitoring.prometheus_rules import ALERTS, recordings
from deploy.render import DEPLOY
from tests.monitoring.promtool import needed, promtool
from xds_server.metrics.metric_spec import MetricSpec
from xds_server.metrics.metric_table import TABLE

RULES = DEPLOY / "monitoring" / "rules.yaml"
ADDED = ("job", "namespace")
"""Labels that Prometheus adds to every series of a target."""

PANELS = [
    (target["expr"], re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    for one in DASHBOARDS
    for panel in json.loads(dashboard_json(one))["panels"]
    for target in panel["targets"]
]
"""Queries of panels with the labels of their legends."""


def filled(query: str) -> str:
    """The query with Grafana variables substituted."""
    return re.sub(r"\$(namespace|pool|engine)\b", ".*", query.replace("$__rate_interval", "5m"))


def series(row: MetricSpec) -> Iterator[str]:
    """Every series of a metric, with one value per open label."""
    pairs = [dict.fromkeys(ADDED, "a")]
    for key, values in row.labels.items():
        pairs = [{**pair, key: value} for pair in pairs for value in values or ("one",)]
    suffixes = [("", {})] if row.kind != "histogram" else [
        *(("_bucket", {"le": bound}) for bound in ("0.1", "1", "+Inf")), ("_sum", {}), ("_count", {}),
    ]  # fmt: skip
    for pair in pairs:
        for suffix, more in suffixes:
            pairs_text = ", ".join(f'{key}="{value}"' for key, value in {**pair, **more}.items())
            yield f"{row.name}{suffix}{{{pairs_text}}}"


def summed(query: str) -> Iterator[tuple[set[str], str]]:
    """Labels and argument of each ``by (labels) (argument)``."""
    for found in re.finditer(r"\bby \(([^)]*)\) \(", query):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(query[end], 0)
            end += 1
        yield {one.strip() for one in found[1].split(",")}, query[found.end() : end - 1]


def exposed(name: str) -> set[str]:
    row = TABLE.get(name) or TABLE[name.removesuffix("_bucket")]
    return {*row.labels, *ADDED, *(("le",) if row.kind == "histogram" else ())}


def missing(query: str) -> set[str]:
    """Labels a query aggregates by that its metric lacks."""
    return {
        f"{label} of {name}"
        for labels, inner in summed(query)
        for name in re.findall(r"(?<![\w:])switchgear_\w+", inner)
        for label in labels - exposed(name)
    }


def test_aggregation_labels_exist_on_their_metrics() -> None:
    queries = [one.expr for one in (*recordings(), *ALERTS)] + [query for query, _ in PANELS]
    assert [found for query in queries if (found := missing(query))] == []
    assert missing("sum by (job, pol) (rate(switchgear_attempts_total[5m]))") == {
        "pol of switchgear_attempts_total"
    }
    assert sum(len(list(summed(query))) for query in queries) > 80


def answered(queries: list[str], folder: Path) -> dict[str, str]:
    """Result of each query after an hour, evaluated by promtool; empty results are left out."""
    inputs = [
        # Growing counters give ratios other than 0 and NaN.
        {"series": one, "values": "0+7x60" if row.kind != "gauge" else "1x60"}
        for row in TABLE.values()
        for one in series(row)
    ]
    test = {
        "interval": "1m",
        "input_series": inputs,
        # Expect nothing, so that promtool prints every result.
        "promql_expr_test": [{"expr": query, "eval_time": "1h", "exp_samples": []} for query in queries],
    }
    path = folder / "queries.json"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    _, output = promtool("test", "rules", str(path))
    return {
        json.loads(query): found
        for query, found in re.findall(r'expr: ("(?:[^"\\]|\\.)*"), time: .*\n\s*exp: nil\n\s*got: (.*)', output)
    }


@needed
def test_every_panel_and_recording_has_a_result(tmp_path: Path) -> None:
    wanted = [(filled(query), legend) for query, legend in PANELS]
    wanted += [(one.record, []) for one in recordings()]
    got = answered([query for query, _ in wanted] + ["switchgear_no_such_metric"], tmp_path)
    assert [query for query, _ in wanted if query not in got] == []
    assert "switchgear_no_such_metric" not in got
    for query, legend in wanted:
        for label in legend:
            assert f'{label}="' in got[query], f"{query} result has no label {label}"
