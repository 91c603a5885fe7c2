"""Figures of docs/sizing.md are those of the stored runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "sizing.md").read_text()


def _rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["rows"]
    return rows


def _figures() -> Iterator[str]:
    for agents, kind in ((100, "114 MiB, 7 to 8 %"), (1000, "166 MiB, 23 to 24 %")):
        rows = [row["with_agents"] for row in _rows("agents") if row["agents"] == agents]
        percents = sorted(round(row["cpu_percent"]) for row in rows)
        assert kind == f"{max(row['rss_mib'] for row in rows):.0f} MiB, {percents[0]} to {percents[1]} %"
        yield kind
    yield f"{_rows('fanout')[-1]['kb_per_stream']:.0f} KB for its stream"
    (storm,) = _rows("storm")
    yield f"{storm['kb_per_proxy']:.0f} KB with configuration"
    yield f"{storm['ejection_cpu_ms']:.0f} ms of CPU"
    yield f"{storm['storm_cpu_s']:.1f} s of CPU, in {storm['storm_s']:.1f} s"
    decide = _rows("decide_loop")[0]
    yield f"{decide['loop_core_percent']:.0f} %; {decide['whole_core_percent']:.0f} % of a core"
    gateways, sidecars, reports = (f"{row['core_percent']:.0f} %" for row in _rows("signals"))
    yield f"{gateways}; {sidecars} of a core"
    yield f"{reports} of a core"
    yield f"at most {max(row['peak_mib'] for row in _rows('floods')):.0f} MiB"
    served = {row["body"]: row for row in _rows("request_cost") if row["contestant"] == "served"}
    headers = {row["body"]: row for row in _rows("request_cost") if row["contestant"] == "served-headers"}
    for body in ("350B", "16KB", "128KB-chat"):
        one = served[body]
        yield f"{one['cpu_us']:.0f} us | {headers[body]['cpu_us']:.0f} us | {one['rss_mb']:.0f} MB"
    yield f"{served['1MB-ids']['cpu_us'] / 1000:.1f} ms | {headers['1MB-ids']['cpu_us'] / 1000:.1f} ms | "
    yield f"{served['16MB']['cpu_us'] / 1000:.0f} ms | {headers['16MB']['cpu_us'] / 1000:.0f} ms | "


def test_figures_are_those_of_the_stored_runs() -> None:
    assert [figure for figure in _figures() if figure not in PAGE] == []
