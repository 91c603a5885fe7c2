"""A healthy engine whose /health fails. ``gray_failure`` is the opposite."""

from collections.abc import Iterator
from typing import ClassVar, Final, Literal

from chaos.fake_engine.engine_faults import EngineBadHealth, SteadyEngineFault
from chaos.faults.cluster_chaos import HEALTH_PATH, ChaosMeshObject, ClusterContext, http_chaos
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field

_SLOW_HEALTH: Final = "5s"  # same as the simulated engine


class LyingHealthFault(SimulatedEngineFault):
    """/health fails while calls are served normally. Trusting /health alone ejects good capacity."""

    incident: ClassVar[str] = "A health check with too short a timeout ejected a whole fleet at peak load."
    breaks: ClassVar[bool] = False
    not_in_litmus: ClassVar[str] = "HTTP faults hit every path of a port, not only /health"

    kind: Literal["lying_health"] = documented_field("lying_health", "Kind of the fault.")
    health: Literal["fail", "slow"] = documented_field("fail", "Answer of /health: 503 at once, or 200 after 5 s.")

    def engine_fault(self) -> SteadyEngineFault:
        return EngineBadHealth(health=self.health)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        if self.health == "fail":
            yield http_chaos(context, "Response", HEALTH_PATH, replace={"code": 503})
        else:
            yield http_chaos(context, "Response", HEALTH_PATH, delay=_SLOW_HEALTH)
