"""Errors after the work: a call takes its slot for the whole generation and is then answered with an error."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineErrorAfterWork, HealthAnswer, SteadyEngineFault
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class EngineErrorFault(SimulatedEngineFault):
    """Calls fail when all of their GPU time has been spent."""

    incident: ClassVar[str] = "A broken build failed in detokenisation: every answer was computed, none was sent."

    kind: Literal["engine_error"] = documented_field("engine_error", "Kind of the fault.")
    status: int = documented_field(500, "Status of the answer.", ge=500, le=599)
    share: float = documented_field(1.0, "Share of the calls that fail.", gt=0, le=1)
    health: HealthAnswer = documented_field("ok", "What /health says.", why="vLLM's looks at the process")

    def engine_fault(self) -> SteadyEngineFault:
        return EngineErrorAfterWork(status=self.status, share=self.share, health=self.health)
