"""An XID: a GPU error reported by the driver."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineErrorAfterWork, EngineHang
from chaos.faults.actions import FaultAction, SetEngineFault, SetGpuState
from chaos.faults.cluster_chaos import NEEDS_GPU_DOUBLE
from chaos.faults.fault import Fault
from policies.document import documented_field


class GpuXidFault(Fault):
    """NVML reports an XID to the agent, and the engine hangs, fails or keeps serving.

    Healing resets the GPU and restarts the agent. docs/gpu.md explains each code.
    """

    incident: ClassVar[str] = "A GPU fell off the bus (XID 79); the process did not notice until its next step."
    not_in_clusters: ClassVar[str] = NEEDS_GPU_DOUBLE

    kind: Literal["gpu_xid"] = documented_field("gpu_xid", "Kind of the fault.")
    code: int = documented_field(79, "XID number.", why="79: the GPU has fallen off the bus", ge=1, le=999)
    engine: Literal["hangs", "fails", "serves"] = documented_field("hangs", "How the engine handles calls.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        told = SetGpuState(engine=target, lines=(f"xid 1 0 {self.code} -1",), reset=True)
        match self.engine:
            case "hangs":
                return (told, SetEngineFault(engine=target, fault=EngineHang()))
            case "fails":
                return (told, SetEngineFault(engine=target, fault=EngineErrorAfterWork()))
            case "serves":
                return (told,)
