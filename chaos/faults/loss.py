"""A lossy link: packets are dropped, and come again when the kernel of their sender has noticed."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Pull, Wire
from policies.document import described


class Loss(Fault):
    """Packets between proxies and an engine are lost; connections stall until TCP has sent them again."""

    incident: ClassVar[str] = "A dirty fibre lost a few packets in a hundred; every health check passed."
    breaks: ClassVar[bool] = False

    kind: Literal["loss"] = described("loss", "Kind of the fault.")
    percent: float = described(10.0, "Packets lost, each way.", unit="percent", gt=0, lt=100)

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Wire(end="engine", target=target, loss_percent=self.percent),)
