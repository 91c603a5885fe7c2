"""A process that dies: connections are reset, and new ones refused until it is started again."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import Crash as EngineCrash
from chaos.fake_engine.faults import SteadyFault
from chaos.faults.engine_trouble import EngineTrouble
from policies.document import described


class Crash(EngineTrouble):
    """The engine is gone; healing starts it anew, with an empty queue."""

    incident: ClassVar[str] = "An assertion in the engine's scheduler failed, and the process ended."

    kind: Literal["crash"] = described("crash", "Kind of the fault.")

    def trouble(self) -> SteadyFault:
        return EngineCrash()
