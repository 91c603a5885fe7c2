"""Connections that are reset in the middle of an answer."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineResetMidStream, SteadyEngineFault
from chaos.faults.cluster_chaos import INSIDE_ENGINE
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class ResetMidStreamFault(SimulatedEngineFault):
    """Reset the connection after some tokens, or after the last one of a shorter answer."""

    incident: ClassVar[str] = "The engine's sidecar kept running out of memory and cut its streams."
    not_in_clusters: ClassVar[str] = INSIDE_ENGINE

    kind: Literal["reset_mid_stream"] = documented_field("reset_mid_stream", "Kind of the fault.")
    after_tokens: int = documented_field(3, "Tokens generated before the reset.", unit="tokens", ge=1, le=100_000)
    share: float = documented_field(1.0, "Share of calls that are reset.", gt=0, le=1)

    def engine_fault(self) -> SteadyEngineFault:
        return EngineResetMidStream(after_tokens=self.after_tokens, share=self.share)
