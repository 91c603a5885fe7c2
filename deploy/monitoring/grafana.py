"""Dashboard model and its JSON for Grafana 10 (schema 39)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from deploy.monitoring.prometheus_rules import ALERTS, RUNBOOKS, metric

QUARTER: Final = 6
"""Width of a small panel, in grid columns."""

THIRD: Final = 8

_WIDE: Final = 24
_HALF: Final = 12
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_COLOURS: Final = {"HEALTHY": "green", "UNHEALTHY": "red", "DRAINING": "blue", "UNKNOWN": "gray"}
_ALERTED: Final = frozenset(one.name for one in ALERTS)

Kind = Literal["timeseries", "stat", "heatmap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel; ``queries`` are pairs of PromQL and legend, ``alert`` is the alert that watches it."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = _HALF
    description: str = ""
    alert: str = ""
    steps: Sequence[tuple[str, float | None]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard; ``variables`` are pairs of a label and the metric that lists its values."""

    name: str
    title: str
    panels: Sequence[Panel]
    variables: Sequence[tuple[str, str]] = field(default_factory=tuple)


def dashboard_json(one: Dashboard, runbooks: str = "") -> str:
    """Dashboard JSON; ``runbooks`` is the base URL of the published runbooks, empty for no links."""
    made = {
        "uid": f"switchgear-{one.name}",
        "title": one.title,
        "tags": ["switchgear"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_source(), *(_variable(*each) for each in one.variables)]},
        "links": [{"type": "dashboards", "tags": ["switchgear"], "title": "Switchgear", "asDropdown": False}],
        "annotations": {"list": []},
        "panels": list(_placed(one.panels, runbooks)),
    }
    return json.dumps(made, indent=1) + "\n"


def _source() -> Mapping[str, object]:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(name: str, known: str) -> Mapping[str, object]:
    narrowed = "" if name == "namespace" else '{namespace=~"$namespace"}'
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric(known)}{narrowed}, {name})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        # Without allValue "All" lists every value, and series without the label would not match.
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(panels: Sequence[Panel], runbooks: str) -> Iterator[Mapping[str, object]]:
    x = y = row = 0
    for number, one in enumerate(panels, start=1):
        height = 5 if one.kind == "stat" else 8
        if x + one.width > _WIDE:
            x, y, row = 0, y + row, 0
        yield _panel(number, one, {"x": x, "y": y, "w": one.width, "h": height}, runbooks)
        x, row = x + one.width, max(row, height)


def _panel(number: int, one: Panel, place: Mapping[str, int], runbooks: str) -> Mapping[str, object]:
    if one.alert and one.alert not in _ALERTED:
        raise KeyError(one.alert)
    defaults: dict[str, object] = {"unit": one.unit}
    if one.unit == "percentunit":
        defaults["min"] = 0
    if one.steps:
        defaults["thresholds"] = {
            "mode": "absolute",
            "steps": [{"color": colour, "value": value} for colour, value in one.steps],
        }
    links = [{"title": f"Runbook {one.alert}", "url": f"{runbooks}/{one.alert}/", "targetBlank": True}]
    page = f"Runbook: {RUNBOOKS}/{one.alert}.md" if one.alert else ""
    return {
        "id": number,
        "type": one.kind,
        "title": one.title,
        "description": " ".join(filter(None, (one.description, page))),
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": _coloured(one)},
        "options": _options(one),
        "links": links if one.alert and runbooks else [],
        "targets": [
            {
                "refId": "ABCDEFGH"[place],
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
                "format": "heatmap" if one.kind == "heatmap" else "time_series",
            }
            for place, (query, legend) in enumerate(one.queries)
        ],
    }


def _coloured(one: Panel) -> Sequence[Mapping[str, object]]:
    """Fixed colours for health states."""
    if not any("health" in query for query, _ in one.queries):
        return []
    return [
        {
            "matcher": {"id": "byName", "options": health},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for health, colour in _COLOURS.items()
    ]


def _options(one: Panel) -> Mapping[str, object]:
    if one.kind == "stat":
        return {"colorMode": "background", "reduceOptions": {"calcs": ["lastNotNull"]}}
    if one.kind == "heatmap":
        return {"calculate": False, "yAxis": {"unit": one.unit}, "color": {"mode": "scheme", "scheme": "Oranges"}}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
