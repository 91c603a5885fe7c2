"""A lossy link: packets are dropped, and come again when the kernel of their sender has noticed."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.fault import Fault
from policies.document import documented_field


class LossFault(Fault):
    """Packets between proxies and an engine are lost; connections stall until TCP has sent them again."""

    incident: ClassVar[str] = "A dirty fibre lost a few packets in a hundred; every health check passed."
    breaks: ClassVar[bool] = False

    kind: Literal["loss"] = documented_field("loss", "Kind of the fault.")
    percent: float = documented_field(10.0, "Packets lost, each way.", unit="percent", gt=0, lt=100)

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (ShapeLink(end="engine", target=target, loss_percent=self.percent),)
