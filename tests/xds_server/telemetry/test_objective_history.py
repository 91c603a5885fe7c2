"""Objectives over 5 minutes to 6 hours, from counts since the start."""

from pathlib import Path
from typing import Any

import pytest

from policies.objectives import Objective, ObjectiveKind
from tests.xds_server.telemetry.conftest import documents, policies_of
from tests.xds_server.telemetry.test_call_latency import record
from xds_server.admin_api.objective_types import ObjectiveStatus, objective_sentence
from xds_server.metrics.metric_registry import Metrics
from xds_server.telemetry import Telemetry
from xds_server.telemetry.objective_history import ObjectiveHistory, ObjectiveTotals

TOTAL = Objective(name="total-p99", kind=ObjectiveKind.TOTAL, target=0.99, limit_s=2.0)
HOUR = 3600


class Clock:
    """A route with a rate of calls, sampled each 10 s."""

    def __init__(self, objective: Objective = TOTAL) -> None:
        self.now_s = 1000.0
        self.calls = self.good = 0.0
        self.objective = objective
        self.history = ObjectiveHistory()
        self.run(0)

    @property
    def totals(self) -> dict[tuple[str, str, str], ObjectiveTotals]:
        one = ObjectiveTotals(objective=self.objective, pools=("chat",), calls=self.calls, good=self.good)
        return {("", "talk", self.objective.name): one}

    def run(self, seconds: int, per_s: float = 10.0, bad: float = 0.0) -> "Clock":
        self.history.sample(self.totals, self.now_s)
        for _ in range(seconds // 10):
            self.now_s += 10
            self.calls += per_s * 10
            self.good += per_s * 10 * (1 - bad)
            self.history.sample(self.totals, self.now_s)
        return self

    def status(self) -> ObjectiveStatus:
        (found,) = self.history.statuses(self.totals, self.now_s)
        return found


def rates(status: ObjectiveStatus) -> dict[str, Any]:
    return {name: window.burn_rate for name, window in status.windows.items()}


def test_route_without_calls_has_no_shares() -> None:
    status = Clock().run(HOUR, per_s=0).status()
    assert (status.state, status.budget_left_percent) == ("no-calls", None)
    assert rates(status) == {"5m": None, "30m": None, "1h": None, "6h": None}
    assert (status.route, status.objective, status.target_percent, status.limit_s) == (
        "talk",
        "total-p99",
        99.0,
        2,
    )


def test_objective_that_is_met_spends_part_of_its_budget() -> None:
    status = Clock().run(7 * HOUR, bad=0.005).status()
    assert status.state == "met"
    assert rates(status) == pytest.approx({"5m": 0.5, "30m": 0.5, "1h": 0.5, "6h": 0.5}, abs=0.02)
    assert status.budget_left_percent == pytest.approx(50, abs=2)
    assert status.windows["1h"].calls == pytest.approx(36_000, rel=0.05)
    assert status.windows["5m"].calls == pytest.approx(3000, rel=0.05)
    assert status.measured_s == 6 * HOUR


def test_fault_is_seen_in_the_short_windows_first() -> None:
    clock = Clock().run(7 * HOUR)
    assert clock.status().windows["6h"].good_percent == 100
    clock.run(300, bad=0.5)
    status = clock.status()
    assert rates(status) == pytest.approx({"5m": 50, "30m": 8.3, "1h": 4.2, "6h": 0.7}, rel=0.1)
    assert status.state == "missed", "4.2 of its budget over an hour, not yet 14.4"
    clock.run(900, bad=0.5)
    assert clock.status().state == "burns-fast"
    clock.run(600)
    status = clock.status()
    assert status.windows["5m"].burn_rate == 0
    assert status.windows["6h"].burn_rate is not None
    assert status.state == "missed", "the short window resolves it"
    assert status.budget_left_percent is not None
    assert status.budget_left_percent < 0


def test_slow_burn_needs_hours() -> None:
    clock = Clock().run(7 * HOUR).run(3 * HOUR, bad=0.08)
    assert clock.status().state == "missed"
    assert clock.run(3 * HOUR, bad=0.08).status().state == "burns-slowly"


def test_young_server_covers_the_time_since_its_start() -> None:
    status = Clock().run(60, bad=0.02).status()
    assert status.measured_s == 60
    assert rates(status) == {"5m": 2, "30m": 2, "1h": 2, "6h": 2}
    assert status.windows["6h"].calls == 600


def test_idle_route_stores_nothing_and_forgets_its_calls() -> None:
    clock = Clock().run(300, bad=0.5)
    stored = len(clock.history._samples["", "talk", "total-p99"].fine)
    clock.run(600, per_s=0)
    assert len(clock.history._samples["", "talk", "total-p99"].fine) <= stored
    status = clock.status()
    assert status.windows["5m"].burn_rate is None
    assert status.windows["30m"].burn_rate == 50
    assert clock.run(7 * HOUR, per_s=0).status().state == "no-calls"


def test_memory_is_bounded() -> None:
    clock = Clock().run(8 * HOUR)
    samples = clock.history._samples["", "talk", "total-p99"]
    assert len(samples.fine) <= 32
    assert len(samples.coarse) <= 182


def test_changed_objective_or_falling_counts_begin_again() -> None:
    clock = Clock().run(HOUR, bad=0.5)
    clock.objective = Objective(name="total-p99", kind=ObjectiveKind.TOTAL, target=0.99, limit_s=5.0)
    clock.calls = clock.good = 0.0
    clock.run(60)
    assert (clock.status().state, clock.status().measured_s) == ("met", 60)
    clock.calls = clock.good = 100.0
    clock.run(0)
    assert clock.status().windows["6h"].calls == 100
    assert list(clock.history.statuses({}, clock.now_s)) == []


def test_answers_of_retries_beyond_the_window_are_not_more_than_all() -> None:
    clock = Clock().run(300)
    clock.good += 500
    assert clock.status().windows["5m"].good_percent == 100


def test_server_measures_objectives_of_its_routes(tmp_path: Path) -> None:
    found = documents()
    for one in found:
        if one["metadata"]["name"] == "talk":
            one["spec"]["objectives"] = {"goodPercent": 90, "total": {"p99": "2s"}}
    now_s = 1000.0
    telemetry = Telemetry(Metrics(), clock=lambda: now_s)
    telemetry.watch(policies_of(tmp_path, found))
    telemetry.traffic(now_s)
    assert [one.state for one in telemetry.objectives()] == ["no-calls", "no-calls"]
    assert objective_sentence(telemetry.objectives()[0]).endswith("no calls in the last hour")
    for _ in range(3):
        record(telemetry.traffic_store, duration_s=3.0)
    record(telemetry.traffic_store)
    now_s += 30
    good, total = telemetry.objectives()
    assert (good.objective, good.state, good.pools) == ("good", "met", ("chat", "small"))
    assert (total.objective, total.state) == ("total-p99", "burns-fast")
    assert (total.windows["5m"].good_percent, total.measured_s) == (25.0, 30.0)
    assert objective_sentence(total) == (
        "route talk, objective total-p99: 25 % of calls within 2 s over 1 h, target 99 %; "
        "burn rate 75.0, -7400 % of the error budget of 6 h left"
    )
    now_s += 600
    telemetry.traffic(now_s)
    assert telemetry.objectives()[1].windows["5m"].calls == 0


def test_server_measures_objectives_of_its_pools(tmp_path: Path) -> None:
    found = documents()
    for one in found:
        if one["metadata"]["name"] == "chat":
            one["spec"]["objectives"] = {"goodPercent": 90}
    now_s = 1000.0
    telemetry = Telemetry(Metrics(), clock=lambda: now_s)
    telemetry.watch(policies_of(tmp_path, found))
    telemetry.traffic(now_s)
    assert [(one.pool, one.route, one.state) for one in telemetry.objectives()] == [("chat", "", "no-calls")]
    for _ in range(3):
        record(telemetry.traffic_store)
    record(telemetry.traffic_store, route="night/non-streaming", code=500)
    now_s += 30
    (good,) = telemetry.objectives()
    assert (good.name, good.pools, good.windows["5m"].good_percent) == ("pool/chat/good", ("chat",), 75.0)
    assert objective_sentence(good).startswith("pool chat, objective good: 75 % of calls over 1 h")
