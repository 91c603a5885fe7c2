"""A link that swallows everything: nothing passes, nobody is told, new connections are never answered."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.fault import Fault
from policies.document import documented_field


class BlackHoleFault(Fault):
    """The engine works; no proxy reaches it. Connections stay open and say nothing, not even that one ended."""

    incident: ClassVar[str] = "A firewall rule dropped packets to a host that was up and well."

    kind: Literal["black_hole"] = documented_field("black_hole", "Kind of the fault.")
    agent: bool = documented_field(False, "Whether the control plane is cut from the agent beside it, too.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        engine = ShapeLink(end="engine", target=target, black_hole=True)
        return (engine, ShapeLink(end="agent", target=target, black_hole=True)) if self.agent else (engine,)
