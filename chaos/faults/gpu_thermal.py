"""A GPU that is too hot and slows itself down."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import Slow
from chaos.faults.fault import Fault
from chaos.faults.pulls import BreakEngine, Gpu, Pull
from chaos.gpu_double.double import MAX_CLOCK_MHZ
from policies.document import described

# NVML: nvmlClocksThrottleReasonHwThermalSlowdown, with the coarser HwSlowdown that comes with it.
_HEAT = 0x40 | 0x8


class GpuThermal(Fault):
    """NVML tells of the heat and the engine is ``factor`` times slower. Agents speak of it after ten seconds."""

    incident: ClassVar[str] = "A fan failed, the board reached 95 degrees, and its replica became the straggler."
    breaks: ClassVar[bool] = False

    kind: Literal["gpu_thermal"] = described("gpu_thermal", "Kind of the fault.")
    temperature_c: int = described(95, "How hot it is.", unit="degrees Celsius", ge=0, le=150)
    factor: float = described(2.0, "How many times longer everything takes.", gt=1, le=100)

    def pulls(self, target: str) -> tuple[Pull, ...]:
        clock_mhz = round(MAX_CLOCK_MHZ / self.factor)
        lines = (f"0.temperature0 {self.temperature_c}", f"0.throttle {_HEAT}", f"0.clock1 {clock_mhz}")
        return (Gpu(engine=target, lines=lines), BreakEngine(engine=target, fault=Slow(factor=self.factor)))

    def capacity_left(self) -> float:
        return 1 / self.factor
