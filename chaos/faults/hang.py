"""A hung CUDA kernel: calls are accepted, nothing comes of them, and /health goes on saying 200."""

from typing import Literal

from chaos.fake_engine.faults import Hang as EngineHang
from chaos.fake_engine.faults import HealthAnswer
from chaos.faults.fault import Fault
from chaos.faults.pulls import BreakEngine, Pull
from policies.document import described


class Hang(Fault):
    """The GPU stands still before the headers of any answer."""

    kind: Literal["hang"] = described("hang", "Kind of the fault.")
    health: HealthAnswer = described("ok", "What /health says.", why="vLLM's looks at the process, not at the GPU")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (BreakEngine(engine=target, fault=EngineHang(health=self.health)),)
