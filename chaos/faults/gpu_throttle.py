"""A GPU whose clocks are held down by its power supply: slower, and it says why."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineSlow
from chaos.faults.actions import FaultAction, SetEngineFault, SetGpuState
from chaos.faults.cluster_chaos import NEEDS_GPU_DOUBLE
from chaos.faults.fault import Fault
from chaos.gpu_double.nvml_double import MAX_CLOCK_MHZ
from policies.document import documented_field

# NVML: nvmlClocksEventReasonSwPowerCap, nvmlClocksThrottleReasonHwSlowdown, ...HwPowerBrakeSlowdown.
_REASONS = {"power-cap": 0x4, "hardware-slowdown": 0x8, "power-brake": 0x80}


class GpuThrottleFault(Fault):
    """NVML names the reason and the engine is ``factor`` times slower. Agents speak of it after ten seconds."""

    incident: ClassVar[str] = "A failed power supply put every GPU of a chassis on the power brake: half speed."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = NEEDS_GPU_DOUBLE

    kind: Literal["gpu_throttle"] = documented_field("gpu_throttle", "Kind of the fault.")
    reason: Literal["power-cap", "hardware-slowdown", "power-brake"] = documented_field(
        "power-brake", "What NVML says."
    )
    factor: float = documented_field(2.0, "How many times longer everything takes.", gt=1, le=100)

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        clock_mhz = round(MAX_CLOCK_MHZ / self.factor)
        lines = (f"0.throttle {_REASONS[self.reason]}", f"0.clock1 {clock_mhz}")
        return (
            SetGpuState(engine=target, lines=lines),
            SetEngineFault(engine=target, fault=EngineSlow(factor=self.factor)),
        )

    def capacity_left(self) -> float:
        return 1 / self.factor
