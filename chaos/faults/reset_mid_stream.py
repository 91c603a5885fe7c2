"""Answers that are cut: the connection is reset with part of the answer on its way."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import ResetMidStream as EngineResetMidStream
from chaos.fake_engine.faults import SteadyFault
from chaos.faults.engine_trouble import EngineTrouble
from policies.document import described


class ResetMidStream(EngineTrouble):
    """The connection is reset once some tokens exist, or all of a shorter answer."""

    incident: ClassVar[str] = (
        "A sidecar beside the engine ran out of memory again and again, and took streams along."
    )

    kind: Literal["reset_mid_stream"] = described("reset_mid_stream", "Kind of the fault.")
    after_tokens: int = described(3, "Tokens that still come.", unit="tokens", ge=1, le=100_000)
    share: float = described(1.0, "Share of the calls that are cut.", gt=0, le=1)

    def trouble(self) -> SteadyFault:
        return EngineResetMidStream(after_tokens=self.after_tokens, share=self.share)
