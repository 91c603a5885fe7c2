"""A hung CUDA kernel: calls are accepted, nothing comes of them, and /health goes on saying 200."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import Hang as EngineHang
from chaos.fake_engine.faults import HealthAnswer, SteadyFault
from chaos.faults.engine_trouble import EngineTrouble
from policies.document import described


class Hang(EngineTrouble):
    """The GPU stands still before the headers of any answer."""

    incident: ClassVar[str] = "A collective deadlocked: the API server answered, no token ever came."

    kind: Literal["hang"] = described("hang", "Kind of the fault.")
    health: HealthAnswer = described("ok", "What /health says.", why="vLLM's looks at the process, not at the GPU")

    def trouble(self) -> SteadyFault:
        return EngineHang(health=self.health)
