"""A link that cuts: connections are reset, those that are there and those that come."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Pull, Wire
from policies.document import described


class Reset(Fault):
    """Proxies get a TCP reset for every connection to the engine, in the middle of answers too."""

    incident: ClassVar[str] = "A connection tracker ran full and reset what it had forgotten."

    kind: Literal["reset"] = described("reset", "Kind of the fault.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Wire(end="engine", target=target, reset=True),)
