"""A well engine whose /health says that it is ill. The other direction is ``gray_failure``."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineBadHealth, SteadyEngineFault
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class LyingHealthFault(SimulatedEngineFault):
    """Calls are served as ever; who believes /health takes good capacity out."""

    incident: ClassVar[str] = "A health check with too short a timeout took a whole fleet out at peak load."
    breaks: ClassVar[bool] = False

    kind: Literal["lying_health"] = documented_field("lying_health", "Kind of the fault.")
    health: Literal["fail", "slow"] = documented_field("fail", "503 at once, or 200 after five seconds.")

    def engine_fault(self) -> SteadyEngineFault:
        return EngineBadHealth(health=self.health)
