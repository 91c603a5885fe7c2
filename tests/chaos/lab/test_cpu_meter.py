"""The accounts of processes and of the machine."""

import os
import sys

import pytest

from chaos.history.history_events import CpuUsage
from chaos.lab.cpu_meter import OURSELVES, CpuMeter
from chaos.processes import ChildProcesses
from tests.eventually import eventually

# Two processes that end by themselves if not killed.
BUSY = (
    "import os, resource\nresource.setrlimit(resource.RLIMIT_CPU, (60, 60))\nos.fork()\nwhile True: pass\n"
)  # fmt: skip


async def test_part_is_charged_for_all_processes_even_ended_ones() -> None:
    groups: dict[str, list[int]] = {"busy": [], "idle": []}
    meter = CpuMeter(lambda: groups)
    seen: list[CpuUsage] = []

    def charged_s(seconds: float) -> bool:
        seen.append(meter.usage(1.0))
        # Percent of a core since the meter was made, which was a while ago.
        return seen[-1].processes.get("busy", 0.0) * meter.elapsed_s / 100 > seconds

    async with ChildProcesses() as children:
        first = await children.start("first", [sys.executable, "-c", BUSY])
        groups["busy"] = [first.pid]
        await eventually(lambda: charged_s(0.3), "the first is charged", 60)
        await children.stop(first)
        groups["busy"] = []
        assert charged_s(0.29)
        groups["busy"] = [(await children.start("second", [sys.executable, "-c", BUSY])).pid]
        await eventually(lambda: charged_s(0.8), "the second is charged as well", 60)
    used = seen[-1]
    assert "idle" not in used.processes
    assert used.processes[OURSELVES] > 0
    assert 0 < used.machine < 101
    assert used.ours == pytest.approx(sum(used.processes.values()) / (os.cpu_count() or 1), rel=0.3)
