"""A GPU that overheats and throttles."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineSlow
from chaos.faults.actions import FaultAction, SetEngineFault, SetGpuState
from chaos.faults.cluster_chaos import NEEDS_GPU_DOUBLE
from chaos.faults.fault import Fault
from chaos.gpu_double.nvml_double import MAX_CLOCK_MHZ
from policies.document import documented_field

# NVML: nvmlClocksThrottleReasonHwThermalSlowdown, with the HwSlowdown bit that accompanies it.
_HEAT = 0x40 | 0x8


class GpuThermalFault(Fault):
    """NVML reports thermal throttling and the engine is ``factor`` times slower. Agents report it after 10 s."""

    incident: ClassVar[str] = "A fan failed, the GPU reached 95 °C, and its replica became a straggler."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = NEEDS_GPU_DOUBLE

    kind: Literal["gpu_thermal"] = documented_field("gpu_thermal", "Kind of the fault.")
    temperature_c: int = documented_field(95, "GPU temperature.", unit="degrees Celsius", ge=0, le=150)
    factor: float = documented_field(2.0, "Factor on all service times.", gt=1, le=100)

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        clock_mhz = round(MAX_CLOCK_MHZ / self.factor)
        lines = (f"0.temperature0 {self.temperature_c}", f"0.throttle {_HEAT}", f"0.clock1 {clock_mhz}")
        return (
            SetGpuState(engine=target, lines=lines),
            SetEngineFault(engine=target, fault=EngineSlow(factor=self.factor)),
        )

    def capacity_left(self) -> float:
        return 1 / self.factor
