"""A straggler: everything on the GPU takes longer, and nothing fails."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import Slow as EngineSlow
from chaos.fake_engine.faults import SteadyFault
from chaos.faults.engine_trouble import EngineTrouble
from policies.document import described


class Slow(EngineTrouble):
    """Prefill and tokens take ``factor`` times as long, for calls in flight too."""

    incident: ClassVar[str] = "A neighbour on the same host took the PCIe bandwidth; one replica ran at a quarter."
    breaks: ClassVar[bool] = False

    kind: Literal["slow"] = described("slow", "Kind of the fault.")
    factor: float = described(4.0, "How many times longer everything takes.", gt=1, le=1000)

    def trouble(self) -> SteadyFault:
        return EngineSlow(factor=self.factor)

    def capacity_left(self) -> float:
        return 1 / self.factor
