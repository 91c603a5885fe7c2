"""An XID: the driver announces an error of the GPU."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineErrorAfterWork, EngineHang
from chaos.faults.actions import FaultAction, SetEngineFault, SetGpuState
from chaos.faults.cluster_chaos import NEEDS_GPU_DOUBLE
from chaos.faults.fault import Fault
from policies.document import documented_field


class GpuXidFault(Fault):
    """NVML tells the engine's agent of the XID, and the engine does what engines do then.

    Healing is a reset of the GPU, which also starts the agent anew. What each code means: docs/gpu.md.
    """

    incident: ClassVar[str] = "A GPU fell off the bus (XID 79); the process did not notice until its next step."
    not_in_clusters: ClassVar[str] = NEEDS_GPU_DOUBLE

    kind: Literal["gpu_xid"] = documented_field("gpu_xid", "Kind of the fault.")
    code: int = documented_field(79, "Number of the XID.", why="79: the GPU has fallen off the bus", ge=1, le=999)
    engine: Literal["hangs", "fails", "serves"] = documented_field("hangs", "What becomes of its calls.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        told = SetGpuState(engine=target, lines=(f"xid 1 0 {self.code} -1",), reset=True)
        match self.engine:
            case "hangs":
                return (told, SetEngineFault(engine=target, fault=EngineHang()))
            case "fails":
                return (told, SetEngineFault(engine=target, fault=EngineErrorAfterWork()))
            case "serves":
                return (told,)
