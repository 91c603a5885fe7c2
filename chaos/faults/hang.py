"""A hung CUDA kernel: calls are accepted but never answered; /health still returns 200."""

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
    """The GPU hangs; no call gets response headers."""

    incident: ClassVar[str] = "A collective deadlocked: the API server answered but produced no token."

    kind: Literal["hang"] = documented_field("hang", "Kind of the fault.")
    health: HealthAnswer = documented_field(
        "ok", "Answer of /health.", why="vLLM's /health checks the process, not the GPU"
    )

    def engine_fault(self) -> SteadyEngineFault:
        return EngineHang(health=self.health)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        differs = "requests are held in front of the engine; its GPU keeps working and its metrics report idle"
        delay = format_duration(context.lasts_s)
        yield http_chaos(context, "Request", ANSWERS_PATH, differs=differs, delay=delay)

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        differs = "requests are held in front of the engine; its GPU keeps working"
        return litmus_http_latency(context, context.lasts_s, differs)
