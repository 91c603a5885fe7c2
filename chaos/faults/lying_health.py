"""A well engine whose /health says that it is ill. The other direction is ``gray_failure``."""

from collections.abc import Iterator
from typing import ClassVar, Final, Literal

from chaos.fake_engine.engine_faults import EngineBadHealth, SteadyEngineFault
from chaos.faults.cluster_chaos import HEALTH_PATH, ChaosMeshObject, ClusterContext, http_chaos
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field

_SLOW_HEALTH: Final = "5s"  # as the simulated engine's slow answer


class LyingHealthFault(SimulatedEngineFault):
    """Calls are served as ever; who believes /health takes good capacity out."""

    incident: ClassVar[str] = "A health check with too short a timeout took a whole fleet out at peak load."
    breaks: ClassVar[bool] = False
    not_in_litmus: ClassVar[str] = "HTTP faults hit every path of a port, not /health alone"

    kind: Literal["lying_health"] = documented_field("lying_health", "Kind of the fault.")
    health: Literal["fail", "slow"] = documented_field("fail", "503 at once, or 200 after five seconds.")

    def engine_fault(self) -> SteadyEngineFault:
        return EngineBadHealth(health=self.health)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        if self.health == "fail":
            yield http_chaos(context, "Response", HEALTH_PATH, replace={"code": 503})
        else:
            yield http_chaos(context, "Response", HEALTH_PATH, delay=_SLOW_HEALTH)
