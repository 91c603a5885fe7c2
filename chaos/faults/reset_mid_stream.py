"""Answers that are cut: the connection is reset with part of the answer on its way."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineResetMidStream, SteadyEngineFault
from chaos.faults.cluster_chaos import INSIDE_ENGINE
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class ResetMidStreamFault(SimulatedEngineFault):
    """The connection is reset once some tokens exist, or all of a shorter answer."""

    incident: ClassVar[str] = (
        "A sidecar beside the engine ran out of memory again and again, and took streams along."
    )
    not_in_clusters: ClassVar[str] = INSIDE_ENGINE

    kind: Literal["reset_mid_stream"] = documented_field("reset_mid_stream", "Kind of the fault.")
    after_tokens: int = documented_field(3, "Tokens that still come.", unit="tokens", ge=1, le=100_000)
    share: float = documented_field(1.0, "Share of the calls that are cut.", gt=0, le=1)

    def engine_fault(self) -> SteadyEngineFault:
        return EngineResetMidStream(after_tokens=self.after_tokens, share=self.share)
