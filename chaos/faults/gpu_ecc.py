"""Uncorrectable GPU memory errors: the engine keeps running, possibly on corrupt data."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, SetGpuState
from chaos.faults.cluster_chaos import NEEDS_GPU_DOUBLE
from chaos.faults.fault import Fault
from policies.document import documented_field


class GpuEccFault(Fault):
    """Raise NVML's count of uncorrectable ECC errors. Healing resets the GPU and restarts its agent."""

    incident: ClassVar[str] = "Double-bit errors corrupted weights in memory; answers were fluent but wrong."
    not_in_clusters: ClassVar[str] = NEEDS_GPU_DOUBLE

    kind: Literal["gpu_ecc"] = documented_field("gpu_ecc", "Kind of the fault.")
    errors: int = documented_field(1, "Errors added at once.", ge=1, le=1_000_000)

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (SetGpuState(engine=target, lines=(f"0.ecc_uncorrected {self.errors}",), reset=True),)
