"""Token pacing: the first token comes in time, the others slowly or in bursts."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EnginePacing, SteadyEngineFault
from chaos.faults.cluster_chaos import INSIDE_ENGINE
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class PacingFault(SimulatedEngineFault):
    """Time to the first token stays as it was, so whoever looks at that alone sees nothing."""

    incident: ClassVar[str] = (
        "Decoding lost its CUDA graphs after an upgrade: first tokens came on time, then a drip."
    )
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = INSIDE_ENGINE

    kind: Literal["pacing"] = documented_field("pacing", "Kind of the fault.")
    factor: float = documented_field(4.0, "How many times longer each later token takes.", ge=1, le=1000)
    burst: int = documented_field(1, "Streams get so many tokens at a time.", unit="tokens", ge=1, le=10_000)

    def engine_fault(self) -> SteadyEngineFault:
        return EnginePacing(factor=self.factor, burst=self.burst)

    def capacity_left(self) -> float:
        # Of an answer that is nearly all decoding, as answers of dozens of tokens are.
        return 1 / self.factor
