"""Base of the faults of simulated engines: each is one setting on the control port."""

from abc import abstractmethod

from chaos.fake_engine.engine_faults import SteadyEngineFault
from chaos.faults.actions import FaultAction, SetEngineFault
from chaos.faults.fault import Fault


class SimulatedEngineFault(Fault):
    """A fault that a simulated engine implements."""

    @abstractmethod
    def engine_fault(self) -> SteadyEngineFault:
        """The fault to set on the engine."""

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (SetEngineFault(engine=target, fault=self.engine_fault()),)
