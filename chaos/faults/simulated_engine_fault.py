"""What the faults of a simulated engine have in common: each is one setting of its control port."""

from abc import abstractmethod

from chaos.fake_engine.engine_faults import SteadyEngineFault
from chaos.faults.actions import FaultAction, SetEngineFault
from chaos.faults.fault import Fault


class SimulatedEngineFault(Fault):
    """A fault that simulated engines know how to have."""

    @abstractmethod
    def engine_fault(self) -> SteadyEngineFault:
        """What the engine is told to do."""

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (SetEngineFault(engine=target, fault=self.engine_fault()),)
