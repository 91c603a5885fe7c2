"""Sick GPUs through the NVML double: a real agent sees them, and forgets them with the reset."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from chaos.fake_engine import FakeEngine
from chaos.faults.fault import Fault
from chaos.faults.gpu_ecc import GpuEcc
from chaos.faults.gpu_thermal import GpuThermal
from chaos.faults.gpu_throttle import GpuThrottle
from chaos.faults.gpu_xid import GpuXid
from chaos.faults.pulls import Gpu, Part
from chaos.gpu_double import double
from chaos.lab.agents import agent
from chaos.lab.levers.gpus import GpuLever, control_lines
from chaos.lab.site import Site
from chaos.processes import Processes
from tests.chaos.faults.small_lab import Struck, controlled, engine_site, site, until

Report = dict[str, Any]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The folder of the double."""
    try:
        return double.build(tmp_path).parent
    except double.CompilerError as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class Watched:
    """An engine of the test's loop, and the agent beside it."""

    site: Site
    engine: FakeEngine
    agent: str

    async def report(self) -> Report:
        try:
            async with self.site.session.get(f"{self.agent}/report", headers={"connection": "close"}) as answer:
                said: Report = await answer.json()
                return said
        except aiohttp.ClientError:
            return {}  # it is being started anew

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
async def watched(library: Path, start_engine, client: aiohttp.ClientSession) -> AsyncIterator[Watched]:
    engine = await start_engine(name="e0", slots=2)
    control = library / "e0.nvml"
    double.write_control(control)
    async with Processes(stop_limit_s=0.1) as children, controlled(engine) as place:
        beside = agent(children, "e0", engine.port, 2, gpu=double.environment(library, control))
        await beside.post.start()
        known = engine_site("e0", engine.port, control=place.control, agent_port=beside.grpc, gpu_file=control)
        here = site(client, known, posts={(Part.AGENT, "e0"): beside.post})
        yield Watched(here, engine, f"http://127.0.0.1:{beside.http}")


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
    (GpuXid(), lambda report, gpu: gpu["xids"] == [79] and report["gpu"]["action"] == "eject"),
    (GpuEcc(errors=3), lambda report, gpu: gpu["ecc_uncorrected"] == 3 and report["gpu"]["action"] == "drain"),
    (GpuThrottle(), lambda _, gpu: gpu["throttled"] and gpu["sm_clock_mhz"] == 990),
    (GpuThermal(), lambda _, gpu: gpu["throttled"] and gpu["temperature_c"] == 95),
]


async def test_each_is_seen_by_the_agent_and_forgotten_when_it_is_healed(watched: Watched) -> None:
    await watched.until(well)
    for fault, seen in BITES:
        struck = Struck(watched.site, fault, "e0")
        await struck.pull()
        await watched.until(seen)
        slowed = fault.capacity_left() == pytest.approx(0.5)
        assert (watched.engine.fault is not None) == (slowed or isinstance(fault, GpuXid))
        await struck.release()
        await struck.release()
        assert watched.engine.fault is None
        await watched.until(well)


async def test_what_several_faults_say_of_one_gpu_holds_together(client, tmp_path: Path) -> None:
    control = tmp_path / "e0.nvml"
    lever = GpuLever(site(client, engine_site("e0", 1, agent_port=2, gpu_file=control)))
    first, second = Gpu(engine="e0", lines=("xid 1 0 79 -1",)), Gpu(engine="e0", lines=("xid 1 0 31 -1", "a 1"))
    await asyncio.gather(lever.pull(first), lever.pull(second))
    assert control.read_text().splitlines()[-3:] == ["xid 1 0 79 -1", "xid 2 0 31 -1", "a 1"]
    await lever.release(first)
    assert control.read_text().splitlines()[-2:] == list(control_lines([second]))
    await lever.release(second)
    assert "xid" not in control.read_text()


async def test_gpu_faults_need_the_double_and_the_double_a_compiler(client, tmp_path: Path, monkeypatch) -> None:
    lever = GpuLever(site(client, engine_site("e0", 1, agent_port=2), engine_site("e1", 1)))
    assert "NVML double" in lever.refusal(GpuEcc().pulls("e0")[0])
    assert lever.refusal(GpuEcc().pulls("e1")[0]) == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(double.CompilerError, match="no C compiler here: install one"):
        double.build(tmp_path)
