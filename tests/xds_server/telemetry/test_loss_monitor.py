"""Alarms about missing telemetry: one line at the start, one at the end, and none for idle proxies."""

from typing import Any

import pytest
import structlog

from xds_server.model.pool_traffic import TelemetrySignal
from xds_server.telemetry.loss_monitor import CALLS_DUE, LOST_S, TelemetryLossMonitor

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
