"""A hung CUDA kernel: calls are accepted, nothing comes of them, and /health goes on saying 200."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineHang, HealthAnswer, SteadyEngineFault
from chaos.faults.cluster_chaos import (
    ANSWERS_PATH,
    ChaosMeshObject,
    ClusterContext,
    LitmusExperiment,
    http_chaos,
    litmus_http_latency,
)
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field
from policies.quantity import format_duration


class HangFault(SimulatedEngineFault):
    """The GPU stands still before the headers of any answer."""

    incident: ClassVar[str] = "A collective deadlocked: the API server answered, no token ever came."

    kind: Literal["hang"] = documented_field("hang", "Kind of the fault.")
    health: HealthAnswer = documented_field(
        "ok", "What /health says.", why="vLLM's looks at the process, not at the GPU"
    )

    def engine_fault(self) -> SteadyEngineFault:
        return EngineHang(health=self.health)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        differs = "requests are held in front of the engine; its GPU goes on, and its metrics say that it is idle"
        delay = format_duration(context.lasts_s)
        yield http_chaos(context, "Request", ANSWERS_PATH, differs=differs, delay=delay)

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        differs = "requests are held in front of the engine, whose GPU goes on"
        return litmus_http_latency(context, context.lasts_s, differs)
