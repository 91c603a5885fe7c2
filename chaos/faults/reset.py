"""A link that cuts: connections are reset, those that are there and those that come."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.fault import Fault
from policies.document import documented_field


class ResetFault(Fault):
    """Proxies get a TCP reset for every connection to the engine, in the middle of answers too."""

    incident: ClassVar[str] = "A connection tracker ran full and reset what it had forgotten."

    kind: Literal["reset"] = documented_field("reset", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (ShapeLink(end="engine", target=target, reset=True),)
