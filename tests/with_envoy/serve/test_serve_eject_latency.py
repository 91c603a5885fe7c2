"""The benchmarks of detection, once per fault: all end, and none takes the time-out."""

import pytest

from benchmarks import detect
from benchmarks.fault_to_quiet import measure


@pytest.mark.envoy
async def test_hang_and_crash_are_ejected_quickly() -> None:
    hang, crash = await measure(trials=1, rate_per_s=50.0)
    assert (hang.fault, crash.fault) == ("hang", "crash")
    assert 0 < hang.decided_s < 30
    assert 0 < crash.decided_s < 30
    assert hang.quiet_s < 30
    assert crash.quiet_s < 30


@pytest.mark.envoy
async def test_with_agents_hang_crash_and_drain_are_detected_quickly() -> None:
    trials = await detect.measure("agent", trials=1, rate_per_s=50.0)
    assert [trial.fault for trial in trials] == ["hang", "crash", "drain"]
    # The targets are the benchmark's to judge.
    assert all(0 < trial.first_s <= trial.last_s < 30 for trial in trials)
