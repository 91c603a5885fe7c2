"""Errors after the work: a call takes its slot for the whole generation and is then answered with an error."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import ErrorAfterWork, HealthAnswer, SteadyFault
from chaos.faults.engine_trouble import EngineTrouble
from policies.document import described


class EngineError(EngineTrouble):
    """Calls fail when all of their GPU time has been spent."""

    incident: ClassVar[str] = "A broken build failed in detokenisation: every answer was computed, none was sent."

    kind: Literal["engine_error"] = described("engine_error", "Kind of the fault.")
    status: int = described(500, "Status of the answer.", ge=500, le=599)
    share: float = described(1.0, "Share of the calls that fail.", gt=0, le=1)
    health: HealthAnswer = described("ok", "What /health says.", why="vLLM's looks at the process")

    def trouble(self) -> SteadyFault:
        return ErrorAfterWork(status=self.status, share=self.share, health=self.health)
