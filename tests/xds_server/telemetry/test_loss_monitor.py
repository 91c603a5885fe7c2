"""Alarms about missing telemetry: one line at the start, one at the end, and none for idle proxies."""

from typing import Any

import pytest
import structlog

from xds_server.model.pool_traffic import TelemetrySignal
from xds_server.telemetry.loss_monitor import CALLS_DUE, LINES, LOST_S, TelemetryLossMonitor

ALS, LRS = TelemetrySignal.ACCESS_LOG, TelemetrySignal.LOAD_REPORT


@pytest.fixture
def lines() -> Any:
    with structlog.testing.capture_logs() as captured:
        yield captured


def events(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


def test_idle_reporting_proxy_is_not_missing(lines):
    losses = TelemetryLossMonitor()
    losses.set_connected(["p1"], 0.0)
    for now_s in range(60):
        losses.record("p1", LRS, float(now_s))
        losses.check(float(now_s))
    assert lines == []


def test_lost_lrs_load_reports_are_logged_once(lines):
    losses = TelemetryLossMonitor()
    losses.set_connected(["p1", "p2"], 0.0)
    for now_s in range(60):
        losses.record("p2", LRS, float(now_s))
        losses.check(float(now_s))
    assert [(line["event"], line["node"], line["signal"]) for line in lines] == [
        ("telemetry.silent", "p1", "load_report")
    ]
    assert losses.lost[LRS] == {"p1"}
    losses.record("p1", LRS, 60.0)
    losses.check(60.0)
    assert events(lines) == ["telemetry.silent", "telemetry.heard_again"]


def test_lost_als_access_logs_are_detected_by_load(lines):
    losses = TelemetryLossMonitor()
    losses.set_connected(["p1"], 0.0)
    for now_s in range(40):
        losses.record("p1", LRS, float(now_s)).unlogged += CALLS_DUE / 10
        losses.check(float(now_s))
    assert [(line["event"], line["signal"]) for line in lines] == [("telemetry.silent", "access_log")]


def test_loss_of_all_telemetry_is_one_error_line(lines):
    losses = TelemetryLossMonitor()
    losses.set_connected(["p1", "p2"], 0.0)
    losses.record("p1", LRS, 1.0)
    losses.record("p2", ALS, 2.0)
    for now_s in range(100):
        losses.check(float(now_s))
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["telemetry.lost"]
    losses.record("p1", LRS, 100.0)
    losses.check(100.0)
    assert "telemetry.found" in events(lines)


def test_no_connected_proxy_is_not_a_loss(lines):
    losses = TelemetryLossMonitor()
    losses.set_connected(["p1"], 0.0)
    losses.record("p1", LRS, 1.0)
    losses.set_connected([], 2.0)
    for now_s in range(100):
        losses.check(float(now_s))
    assert lines == []
    assert losses.signals == {}


def test_new_connection_has_a_grace_time(lines):
    losses = TelemetryLossMonitor()
    losses.record("p1", LRS, 0.0)
    losses.set_connected(["p1"], 10.0)
    losses.check(10.0 + LOST_S)
    assert lines == []


def test_made_up_nodes_get_few_lines(lines):
    suppressed: list[None] = []
    losses = TelemetryLossMonitor(lambda: suppressed.append(None))
    nodes = [f"made-up-{number}" for number in range(5_000)]
    losses.set_connected(nodes, 0.0)
    losses.check(LOST_S + 1.0)
    assert len(losses.lost[LRS]) == 5_000
    about_one = [line for line in lines if "node" in line]
    assert len(about_one) == LINES.burst
    assert {line["silent"] for line in about_one} == {5_000}
    assert len(suppressed) == 5_000 - LINES.burst
    # Later a silent proxy is named again.
    losses.set_connected([*nodes, "real"], LOST_S + 100.0)
    for node in nodes:
        losses.record(node, LRS, 2 * LOST_S + 101.0)
    losses.record("real", ALS, LOST_S + 100.0)
    before = len(lines)
    losses.check(2 * LOST_S + 101.0)
    assert "real" in {line.get("node") for line in lines[before:]}
