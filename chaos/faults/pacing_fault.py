"""Slow token pacing: the first token is on time, later ones are slow or arrive in bursts."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EnginePacing, SteadyEngineFault
from chaos.faults.cluster_chaos import INSIDE_ENGINE
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class PacingFault(SimulatedEngineFault):
    """Slow down tokens after the first. TTFT stays normal and does not reveal the fault."""

    incident: ClassVar[str] = "An upgrade disabled CUDA graphs for decoding: TTFT was normal, token rate was not."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = INSIDE_ENGINE

    kind: Literal["pacing"] = documented_field("pacing", "Kind of the fault.")
    factor: float = documented_field(4.0, "Factor on the time per token after the first.", ge=1, le=1000)
    burst: int = documented_field(1, "Tokens sent per burst.", unit="tokens", ge=1, le=10_000)

    def engine_fault(self) -> SteadyEngineFault:
        return EnginePacing(factor=self.factor, burst=self.burst)

    def capacity_left(self) -> float:
        # For answers of dozens of tokens, nearly all of the time is decoding.
        return 1 / self.factor
