"""An XID: the driver announces an error of the GPU."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import ErrorAfterWork, Hang
from chaos.faults.fault import Fault
from chaos.faults.pulls import BreakEngine, Gpu, Pull
from policies.document import described


class GpuXid(Fault):
    """NVML tells the engine's agent of the XID, and the engine does what engines do then.

    Healing is a reset of the GPU, which also starts the agent anew. What each code means: docs/gpu.md.
    """

    incident: ClassVar[str] = "A GPU fell off the bus (XID 79); the process did not notice until its next step."

    kind: Literal["gpu_xid"] = described("gpu_xid", "Kind of the fault.")
    code: int = described(79, "Number of the XID.", why="79: the GPU has fallen off the bus", ge=1, le=999)
    engine: Literal["hangs", "fails", "serves"] = described("hangs", "What becomes of its calls.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        told = Gpu(engine=target, lines=(f"xid 1 0 {self.code} -1",), reset=True)
        match self.engine:
            case "hangs":
                return (told, BreakEngine(engine=target, fault=Hang()))
            case "fails":
                return (told, BreakEngine(engine=target, fault=ErrorAfterWork()))
            case "serves":
                return (told,)
