"""A well engine whose /health says that it is ill. The other direction is ``gray_failure``."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import BadHealth, SteadyFault
from chaos.faults.engine_trouble import EngineTrouble
from policies.document import described


class LyingHealth(EngineTrouble):
    """Calls are served as ever; who believes /health takes good capacity out."""

    incident: ClassVar[str] = "A health check with too short a timeout took a whole fleet out at peak load."
    breaks: ClassVar[bool] = False

    kind: Literal["lying_health"] = described("lying_health", "Kind of the fault.")
    health: Literal["fail", "slow"] = described("fail", "503 at once, or 200 after five seconds.")

    def trouble(self) -> SteadyFault:
        return BadHealth(health=self.health)
