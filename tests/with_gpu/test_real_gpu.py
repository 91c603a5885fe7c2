"""What the fakes of ``tests/engine/gpu`` stand for: a real driver, real XIDs, real kernels that never end."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.gpu.xid import xid_rule
from engine.gpu_check import CheckOutcome, CheckSettings, check_gpu
from tests.engine.gpu.conftest import Watched
from tests.with_gpu.conftest import load, note, printed, torch_python

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(600)]

_STUCK_CHILD = Path(__file__).with_name("stuck_child.py")
_CHECK_BUDGET_MS = 50.0
ESSENTIAL = (
    "temperature_c",
    "power_w",
    "throttled",
    "sm_clock_mhz",
    "utilisation_percent",
    "memory_total_bytes",
    "memory_used_bytes",
    "memory_free_bytes",
)
"""Values that every data-centre GPU has."""


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A process that holds a ``GpuSource`` on the real driver, at the pace of an agent."""
    root = str(Path(__file__).parents[2])
    settings = {"interval_s": 0.2, "wear_interval_s": 1.0, "event_wait_ms": 500}
    source = Watched({**os.environ, "PYTHONPATH": root}, settings)
    try:
        yield source
    finally:
        source.end()


def gpu(state: dict[str, Any]) -> dict[str, Any]:
    """The first GPU of a state."""
    found: dict[str, Any] = state["readings"]["gpus"][0]
    return found


def test_healthy_gpu_is_read_whole_and_judged_without_action() -> None:
    status, said = printed("engine.gpu", "--wait-s", "30")
    assert said["readings"]["state"] == "present"
    first = gpu(said)
    absent = [name for name in ESSENTIAL if first["vitals"][name] is None]
    assert not absent, first
    identity = first["identity"]
    assert identity["uuid"].startswith("GPU-")
    assert identity["name"]
    assert said["readings"]["events"] == "", "the driver delivers XIDs"
    assert said["judgement"]["action"] in ("none", "watch"), said["judgement"]
    assert status in (0, 1)
    note("GPU, driver", f"{identity['name']}, {said['readings']['driver_version']}")
    unknown = [f"{one['signal']}: {one['why']}" for one in first["unknown"]]
    note("signals that this GPU does not offer", unknown or "none")


def test_busy_gpu_shows_its_work_and_is_judged_without_action(watched: Watched) -> None:
    with load("multiply") as working:
        state = watched.until(
            lambda one: (
                bool(one["readings"]["gpus"])
                and (gpu(one)["vitals"]["utilisation_percent"] or 0) > 90
                and any(each["pid"] == working.process.pid for each in gpu(one)["wear"]["processes"] or ())
            )
        )
        slowest = max(each["read_ms"] for each in watched.states(100))
    vitals = gpu(state)["vitals"]
    assert vitals["memory_used_bytes"] > 100 * 2**20
    assert state["judgement"]["action"] in ("none", "watch"), state["judgement"]
    note("busy: power, SM clock", f"{vitals['power_w']:.0f} W, {vitals['sm_clock_mhz']} MHz")
    note("busy: throttled by", vitals["throttled"])
    note("busy: longest read() of 100", f"{slowest:.2f} ms")
    assert slowest < 100, "reading never waits for the driver"


def test_illegal_access_of_a_kernel_arrives_as_xid(watched: Watched) -> None:
    watched.until(lambda one: bool(one["readings"]["gpus"]) and one["readings"]["events"] == "")
    with load("fault") as working:
        began_s = time.monotonic()
        working.resume()
        state = watched.until(lambda one: bool(one["xids"]))
        heard_s = time.monotonic() - began_s
        status, errors = working.ended()
    assert status != 0
    assert "illegal memory access" in errors, errors
    code = state["xids"][0]["code"]
    note("illegal access: XID, seconds from the launch of the kernel", f"{code}, {heard_s:.3f}")
    rule = xid_rule(code, {})
    assert code in (13, 31, 43), state["xids"]
    state = watched.until(lambda one: one["judgement"]["action"] != "none")
    assert state["judgement"]["action"] == rule.action, state["judgement"]
    assert any(f"XID {code}" in one["sentence"] for one in state["judgement"]["evidence"]), state["judgement"]
    if rule.fixed_by_restart:
        watched.restart_engine()
        watched.until(lambda one: not one["xids"])


async def test_deep_check_of_a_healthy_gpu_stays_within_its_budget() -> None:
    check = await check_gpu("0", CheckSettings(python=torch_python()))
    note("deep check, idle GPU", f"{check.gpu_ms} ms of the GPU, {check.wall_s:.1f} s")
    assert check.outcome is CheckOutcome.OK, check
    assert check.gpu_ms is not None
    assert check.gpu_ms < _CHECK_BUDGET_MS


async def test_deep_check_of_a_busy_gpu_passes() -> None:
    with load("multiply"):
        check = await check_gpu("0", CheckSettings(python=torch_python()))
    note("deep check, busy GPU", f"{check.gpu_ms} ms of the GPU, {check.wall_s:.1f} s")
    assert check.outcome is CheckOutcome.OK, check


async def test_kernel_of_another_process_that_never_ends_does_not_fail_the_check() -> None:
    """GPUs share time between processes: the check tells a hung kernel of the engine from a hung GPU."""
    with load("spin", 300.0):
        check = await check_gpu("0", CheckSettings(python=torch_python()))
    note("deep check, another process's kernel spins", f"{check.outcome}, {check.gpu_ms} ms, {check.wall_s:.1f} s")
    assert check.outcome is CheckOutcome.OK, check


async def test_stuck_kernel_of_the_check_is_named_and_killed() -> None:
    deadlines = {**CheckSettings().stage_deadline_s, "kernels": 2.0}
    stuck = CheckSettings(python=torch_python(), child=_STUCK_CHILD, stage_deadline_s=deadlines)
    check = await check_gpu("0", stuck)
    assert check.outcome is CheckOutcome.STUCK, check
    assert check.evidence == "stuck in kernels for 2 s, killed", check
    note("deep check, its own kernel stuck: killed after", f"{check.wall_s:.1f} s")
    after = await check_gpu("0", CheckSettings(python=torch_python()))
    assert after.outcome is CheckOutcome.OK, "a killed process frees the GPU"


async def test_full_memory_says_nothing_about_the_gpu() -> None:
    with load("fill", 100.0) as full:
        check = await check_gpu("0", CheckSettings(python=torch_python()))
    note("deep check, memory full", f"{full.first['free_bytes'] / 2**20:.0f} MiB free: {check.evidence[:80]}")
    assert check.outcome is CheckOutcome.OUT_OF_MEMORY, check


async def test_check_after_a_fault_of_another_process_passes() -> None:
    with load("fault") as working:
        working.resume()
        working.ended()
    check = await check_gpu("0", CheckSettings(python=torch_python()))
    assert check.outcome is CheckOutcome.OK, check


async def test_missing_device_is_not_checked() -> None:
    check = await check_gpu("99", CheckSettings(python=torch_python()))
    assert check.outcome is CheckOutcome.UNAVAILABLE, check


def test_device_that_does_not_exist_is_named() -> None:
    _, said = printed("engine.gpu", "--device", "99", "--wait-s", "1")
    assert [one["name"] for one in said["readings"]["missing"]] == ["99"], said["readings"]
