"""A link that swallows everything: nothing passes, nobody is told, new connections are never answered."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Pull, Wire
from policies.document import described


class BlackHole(Fault):
    """The engine works; no proxy reaches it. Connections stay open and say nothing, not even that one ended."""

    incident: ClassVar[str] = "A firewall rule dropped packets to a host that was up and well."

    kind: Literal["black_hole"] = described("black_hole", "Kind of the fault.")
    agent: bool = described(False, "Whether the control plane is cut from the agent beside it, too.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        engine = Wire(end="engine", target=target, black_hole=True)
        return (engine, Wire(end="agent", target=target, black_hole=True)) if self.agent else (engine,)
