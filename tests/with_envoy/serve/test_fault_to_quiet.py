"""The benchmark of detection, once per fault: both end, and neither takes the time-out."""

import pytest

from benchmarks.fault_to_quiet import measure


@pytest.mark.envoy
async def test_a_hang_and_a_crash_are_over_soon() -> None:
    hang, crash = await measure(trials=1, rate_per_s=50.0)
    assert (hang.fault, crash.fault) == ("hang", "crash")
    assert 0 < hang.decided_s < 30
    assert 0 < crash.decided_s < 30
    assert hang.quiet_s < 30
    assert crash.quiet_s < 30
