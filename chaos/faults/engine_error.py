"""Errors after the work: a call holds its slot for the whole generation, then fails."""

from collections.abc import Iterator
from typing import ClassVar, Final, Literal

from chaos.fake_engine.engine_faults import EngineErrorAfterWork, HealthAnswer, SteadyEngineFault
from chaos.faults.cluster_chaos import (
    ANSWERS_PATH,
    ChaosMeshObject,
    ClusterContext,
    LitmusExperiment,
    http_chaos,
    litmus_http,
)
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field

_LITMUS_STATUSES: Final = (500, 501, 502, 503, 504)
"""Statuses that pod-http-status-code supports and this fault may use."""


class EngineErrorFault(SimulatedEngineFault):
    """Calls fail after they have used all of their GPU time."""

    incident: ClassVar[str] = "A broken build failed in detokenisation: every answer was computed, none sent."

    kind: Literal["engine_error"] = documented_field("engine_error", "Kind of the fault.")
    status: int = documented_field(500, "HTTP status of the answer.", ge=500, le=599)
    share: float = documented_field(1.0, "Share of the calls that fail.", gt=0, le=1)
    health: HealthAnswer = documented_field(
        "ok", "Answer of /health.", why="vLLM's /health checks the process only"
    )

    def engine_fault(self) -> SteadyEngineFault:
        return EngineErrorAfterWork(status=self.status, share=self.share, health=self.health)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        differs = "" if self.share == 1 else f"replaces every answer, not {100 * self.share:g} %"
        yield http_chaos(context, "Response", ANSWERS_PATH, differs=differs, replace={"code": self.status})

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        status = self.status if self.status in _LITMUS_STATUSES else _LITMUS_STATUSES[0]
        differs = "/health and /metrics fail too"
        if status != self.status:
            differs += f"; Litmus has no {self.status}, so it uses {status}"
        env = litmus_http(context, STATUS_CODE=str(status), TOXICITY=f"{100 * self.share:.0f}")
        return LitmusExperiment(experiment="pod-http-status-code", env=env, differs=differs)
