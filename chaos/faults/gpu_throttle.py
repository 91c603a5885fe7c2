"""A GPU with clocks limited by its power supply."""

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
    """NVML reports the throttle reason and the engine is ``factor`` times slower. Agents report it after 10 s."""

    incident: ClassVar[str] = (
        "A power supply failed and the power brake halved the speed of every GPU in the chassis."
    )
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = NEEDS_GPU_DOUBLE

    kind: Literal["gpu_throttle"] = documented_field("gpu_throttle", "Kind of the fault.")
    reason: Literal["power-cap", "hardware-slowdown", "power-brake"] = documented_field(
        "power-brake", "Throttle reason in NVML."
    )
    factor: float = documented_field(2.0, "Factor on all service times.", gt=1, le=100)

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        clock_mhz = round(MAX_CLOCK_MHZ / self.factor)
        lines = (f"0.throttle {_REASONS[self.reason]}", f"0.clock1 {clock_mhz}")
        return (
            SetGpuState(engine=target, lines=lines),
            SetEngineFault(engine=target, fault=EngineSlow(factor=self.factor)),
        )

    def capacity_left(self) -> float:
        return 1 / self.factor
