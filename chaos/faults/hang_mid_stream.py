"""Streams that start normally, then stall."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineHangMidStream, SteadyEngineFault
from chaos.faults.cluster_chaos import INSIDE_ENGINE
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class HangMidStreamFault(SimulatedEngineFault):
    """Calls stall after some tokens and keep their slots. Shorter calls, probes included, finish normally."""

    incident: ClassVar[str] = "A worker lost its peer during decoding: half an answer, then silence."
    not_in_clusters: ClassVar[str] = INSIDE_ENGINE

    kind: Literal["hang_mid_stream"] = documented_field("hang_mid_stream", "Kind of the fault.")
    after_tokens: int = documented_field(4, "Tokens sent before the stall.", unit="tokens", ge=0, le=100_000)
    share: float = documented_field(1.0, "Share of calls that stall.", gt=0, le=1)

    def engine_fault(self) -> SteadyEngineFault:
        return EngineHangMidStream(after_tokens=self.after_tokens, share=self.share)
