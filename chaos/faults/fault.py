"""What every fault has in common: whom it can hit, what it does to them, and what is left of them meanwhile."""

from abc import abstractmethod
from enum import StrEnum
from typing import ClassVar

from chaos.faults.actions import FaultAction
from policies.document import Spec


class TargetKind(StrEnum):
    """What a fault hits. A target's zone, number, fraction and count pick among all of that sort."""

    ENGINES = "engines"
    PROXIES = "proxies"
    CONTROL_PLANE = "control-plane"
    CLIENTS = "clients"
    ZONES = "zones"
    """Engines and proxies both; its targets are named one by one."""


class Fault(Spec):
    """Settings of one kind of fault; every subclass has a ``kind`` with its own name as default.

    ``incident`` is where this happens in life. ``breaks``: requests had better not go to its targets while it
    lasts, so checks count them as bad engines.
    """

    aim: ClassVar[TargetKind] = TargetKind.ENGINES
    incident: ClassVar[str] = ""
    breaks: ClassVar[bool] = True

    @abstractmethod
    def actions(self, target: str) -> tuple[FaultAction, ...]:
        """What is done to one target for as long as the fault lasts; the lab takes it back afterwards."""

    def capacity_left(self) -> float:
        """Share of a target engine's work that is still worth having: 0 for one that is better left alone."""
        return 0.0 if self.breaks else 1.0
