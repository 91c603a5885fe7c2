"""Streams that begin well and stop without a word."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import HangMidStream as EngineHangMidStream
from chaos.fake_engine.faults import SteadyFault
from chaos.faults.engine_trouble import EngineTrouble
from policies.document import described


class HangMidStream(EngineTrouble):
    """A call stalls after some tokens and keeps its slot; shorter ones end as usual, probes among them."""

    incident: ClassVar[str] = "A worker lost its peer in the middle of decoding: half an answer, then silence."

    kind: Literal["hang_mid_stream"] = described("hang_mid_stream", "Kind of the fault.")
    after_tokens: int = described(4, "Tokens that still come.", unit="tokens", ge=0, le=100_000)
    share: float = described(1.0, "Share of the calls that stall.", gt=0, le=1)

    def trouble(self) -> SteadyFault:
        return EngineHangMidStream(after_tokens=self.after_tokens, share=self.share)
