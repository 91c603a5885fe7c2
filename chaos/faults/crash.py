"""A process that dies: connections are reset, and new ones refused until it is started again."""

from typing import Literal

from chaos.fake_engine.faults import Crash as EngineCrash
from chaos.faults.fault import Fault
from chaos.faults.pulls import BreakEngine, Pull
from policies.document import described


class Crash(Fault):
    """The engine is gone; healing starts it anew, with an empty queue."""

    kind: Literal["crash"] = described("crash", "Kind of the fault.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (BreakEngine(engine=target, fault=EngineCrash()),)
