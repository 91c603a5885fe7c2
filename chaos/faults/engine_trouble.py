"""What the faults of a simulated engine have in common: each is one setting of its control port."""

from abc import abstractmethod

from chaos.fake_engine.faults import SteadyFault
from chaos.faults.fault import Fault
from chaos.faults.pulls import BreakEngine, Pull


class EngineTrouble(Fault):
    """A fault that simulated engines know how to have."""

    @abstractmethod
    def trouble(self) -> SteadyFault:
        """What the engine is told to do."""

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (BreakEngine(engine=target, fault=self.trouble()),)
