"""The benchmarks of detection, once per fault: all end, and none takes the time-out."""

import pytest

from benchmarks import detect
from benchmarks.fault_to_quiet import measure


@pytest.mark.envoy
async def test_hang_and_crash_are_ejected_quickly() -> None:
    hang, crash = await measure(trials=1, rate_per_s=50.0)
    assert (hang.labels, crash.labels) == ({"fault": "hang"}, {"fault": "crash"})
    assert 0 < hang.values["decided_s"] < 30
    assert 0 < crash.values["decided_s"] < 30
    assert hang.values["quiet_s"] < 30
    assert crash.values["quiet_s"] < 30


@pytest.mark.envoy
async def test_with_agents_hang_crash_and_drain_are_detected_quickly() -> None:
    trials = await detect.measure("agent", trials=1, rate_per_s=50.0)
    assert [trial.labels["fault"] for trial in trials] == ["hang", "crash", "drain"]
    # The targets are the benchmark's to judge.
    assert all(0 < trial.values["first_s"] <= trial.values["last_s"] < 30 for trial in trials)
