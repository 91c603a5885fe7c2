"""A GPU that is too hot and slows itself down."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineSlow
from chaos.faults.actions import FaultAction, SetEngineFault, SetGpuState
from chaos.faults.cluster_chaos import NEEDS_GPU_DOUBLE
from chaos.faults.fault import Fault
from chaos.gpu_double.nvml_double import MAX_CLOCK_MHZ
from policies.document import documented_field

# NVML: nvmlClocksThrottleReasonHwThermalSlowdown, with the coarser HwSlowdown that comes with it.
_HEAT = 0x40 | 0x8


class GpuThermalFault(Fault):
    """NVML tells of the heat and the engine is ``factor`` times slower. Agents speak of it after ten seconds."""

    incident: ClassVar[str] = "A fan failed, the board reached 95 degrees, and its replica became the straggler."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = NEEDS_GPU_DOUBLE

    kind: Literal["gpu_thermal"] = documented_field("gpu_thermal", "Kind of the fault.")
    temperature_c: int = documented_field(95, "How hot it is.", unit="degrees Celsius", ge=0, le=150)
    factor: float = documented_field(2.0, "How many times longer everything takes.", gt=1, le=100)

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        clock_mhz = round(MAX_CLOCK_MHZ / self.factor)
        lines = (f"0.temperature0 {self.temperature_c}", f"0.throttle {_HEAT}", f"0.clock1 {clock_mhz}")
        return (
            SetGpuState(engine=target, lines=lines),
            SetEngineFault(engine=target, fault=EngineSlow(factor=self.factor)),
        )

    def capacity_left(self) -> float:
        return 1 / self.factor
