"""A hung CUDA kernel: calls are accepted, nothing comes of them, and /health goes on saying 200."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineHang, HealthAnswer, SteadyEngineFault
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class HangFault(SimulatedEngineFault):
    """The GPU stands still before the headers of any answer."""

    incident: ClassVar[str] = "A collective deadlocked: the API server answered, no token ever came."

    kind: Literal["hang"] = documented_field("hang", "Kind of the fault.")
    health: HealthAnswer = documented_field(
        "ok", "What /health says.", why="vLLM's looks at the process, not at the GPU"
    )

    def engine_fault(self) -> SteadyEngineFault:
        return EngineHang(health=self.health)
