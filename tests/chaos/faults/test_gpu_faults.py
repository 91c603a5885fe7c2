"""Sick GPUs through the NVML double: a real agent sees them, and forgets them with the reset."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from chaos.fake_engine import FakeEngine
from chaos.faults.actions import ProcessRole, SetGpuState
from chaos.faults.fault import Fault
from chaos.faults.gpu_ecc import GpuEccFault
from chaos.faults.gpu_thermal import GpuThermalFault
from chaos.faults.gpu_throttle import GpuThrottleFault
from chaos.faults.gpu_xid import GpuXidFault
from chaos.gpu_double import nvml_double
from chaos.lab.agent_process import agent_process
from chaos.lab.injectors.gpu_injector import GpuInjector, control_lines
from chaos.lab.lab_handles import LabHandles
from chaos.processes import ChildProcesses
from tests.chaos.faults.small_lab import InjectedFault, controlled, engine_site, site, until

Report = dict[str, Any]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The folder of the double."""
    try:
        return nvml_double.build_library(tmp_path).parent
    except nvml_double.CompilerError as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class EngineWithAgent:
    """An engine in the test's loop, with its agent."""

    site: LabHandles
    engine: FakeEngine
    agent: str

    async def report(self) -> Report:
        try:
            async with self.site.session.get(f"{self.agent}/report", headers={"connection": "close"}) as answer:
                expected: Report = await answer.json()
                return expected
        except aiohttp.ClientError:
            return {}  # restarting

    async def until(self, holds: Callable[[Report, Report], object]) -> None:
        """Return when it holds of the report and of the GPU in it."""

        async def seen() -> bool:
            report = await self.report()
            gpus = (report.get("gpu") or {}).get("gpus")
            return bool(gpus) and bool(holds(report, gpus[0]))

        try:
            await until(seen)
        except TimeoutError:
            pytest.fail(f"never so: {await self.report()}")


@pytest.fixture
async def watched(library: Path, start_engine, client: aiohttp.ClientSession) -> AsyncIterator[EngineWithAgent]:
    engine = await start_engine(name="e0", slots=2)
    control = library / "e0.nvml"
    nvml_double.write_control(control)
    async with ChildProcesses(stop_limit_s=0.1) as children, controlled(engine) as place:
        beside = agent_process(children, "e0", engine.port, 2, gpu=nvml_double.environment(library, control))
        await beside.post.start()
        known = engine_site("e0", engine.port, control=place.control, agent_port=beside.grpc, gpu_file=control)
        here = site(client, known, posts={(ProcessRole.AGENT, "e0"): beside.post})
        yield EngineWithAgent(here, engine, f"http://127.0.0.1:{beside.http}")


def well(report: Report, gpu: Report) -> bool:
    return (
        report["verdict"] == "ready"
        and report["gpu"]["action"] == "none"
        and not gpu["throttled"]
        and not gpu["xids"]
        and gpu["temperature_c"] == 55
        and gpu["ecc_uncorrected"] == 0
    )


BITES: list[tuple[Fault, Callable[[Report, Report], object]]] = [
    (GpuXidFault(), lambda report, gpu: gpu["xids"] == [79] and report["gpu"]["action"] == "eject"),
    (
        GpuEccFault(errors=3),
        lambda report, gpu: gpu["ecc_uncorrected"] == 3 and report["gpu"]["action"] == "drain",
    ),
    (GpuThrottleFault(), lambda _, gpu: gpu["throttled"] and gpu["sm_clock_mhz"] == 990),
    (GpuThermalFault(), lambda _, gpu: gpu["throttled"] and gpu["temperature_c"] == 95),
]


async def test_agent_reports_each_gpu_fault_and_its_healing(watched: EngineWithAgent) -> None:
    await watched.until(well)
    for fault, seen in BITES:
        struck = InjectedFault(watched.site, fault, "e0")
        await struck.pull()
        await watched.until(seen)
        slowed = fault.capacity_left() == pytest.approx(0.5)
        assert (watched.engine.fault is not None) == (slowed or isinstance(fault, GpuXidFault))
        await struck.release()
        await struck.release()
        assert watched.engine.fault is None
        await watched.until(well)


async def test_faults_on_one_gpu_combine(client, tmp_path: Path) -> None:
    control = tmp_path / "e0.nvml"
    lever = GpuInjector(site(client, engine_site("e0", 1, agent_port=2, gpu_file=control)))
    first, second = (
        SetGpuState(engine="e0", lines=("xid 1 0 79 -1",)),
        SetGpuState(engine="e0", lines=("xid 1 0 31 -1", "a 1")),
    )
    await asyncio.gather(lever.inject(first), lever.inject(second))
    assert control.read_text().splitlines()[-3:] == ["xid 1 0 79 -1", "xid 2 0 31 -1", "a 1"]
    await lever.revert(first)
    assert control.read_text().splitlines()[-2:] == list(control_lines([second]))
    await lever.revert(second)
    assert "xid" not in control.read_text()


async def test_gpu_faults_without_double_or_compiler_are_refused(client, tmp_path: Path, monkeypatch) -> None:
    lever = GpuInjector(site(client, engine_site("e0", 1, agent_port=2), engine_site("e1", 1)))
    assert "NVML double" in lever.refusal(GpuEccFault().actions("e0")[0])
    assert lever.refusal(GpuEccFault().actions("e1")[0]) == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(nvml_double.CompilerError, match="install one"):
        nvml_double.build_library(tmp_path)
