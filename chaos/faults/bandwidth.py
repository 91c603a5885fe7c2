"""A narrow link: everything passes, slowly, and waits for what is before it."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.fault import Fault
from policies.document import documented_field


class BandwidthFault(Fault):
    """All connections between proxies and an engine share so many bytes per second, each way."""

    incident: ClassVar[str] = "A host copied a model from a neighbour through the link that serves requests."
    breaks: ClassVar[bool] = False

    kind: Literal["bandwidth"] = documented_field("bandwidth", "Kind of the fault.")
    bytes_per_second: float = documented_field(
        4000.0,
        "What passes, each way.",
        why="simulated answers are small: a few hundred bytes each",
        unit="bytes/s",
        ge=100,
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (ShapeLink(end="engine", target=target, bytes_per_s=self.bytes_per_second),)
