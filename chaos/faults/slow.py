"""A straggler: everything on the GPU takes longer, and nothing fails."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineSlow, SteadyEngineFault
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class SlowFault(SimulatedEngineFault):
    """Prefill and tokens take ``factor`` times as long, for calls in flight too."""

    incident: ClassVar[str] = "A neighbour on the same host took the PCIe bandwidth; one replica ran at a quarter."
    breaks: ClassVar[bool] = False

    kind: Literal["slow"] = documented_field("slow", "Kind of the fault.")
    factor: float = documented_field(4.0, "How many times longer everything takes.", gt=1, le=1000)

    def engine_fault(self) -> SteadyEngineFault:
        return EngineSlow(factor=self.factor)

    def capacity_left(self) -> float:
        return 1 / self.factor
