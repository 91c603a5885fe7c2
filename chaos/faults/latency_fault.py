"""A slow link: packets arrive late and unevenly, none is lost."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.fault import Fault
from policies.document import documented_field
from policies.quantity import Duration


class LatencyFault(Fault):
    """What proxies send to an engine and what it answers is late; new connections take a round trip longer."""

    incident: ClassVar[str] = "Traffic to one rack took a detour through another site after a link had failed."
    breaks: ClassVar[bool] = False

    kind: Literal["latency"] = documented_field("latency", "Kind of the fault.")
    delay: Duration = documented_field(0.1, "Added to everything, each way.", unit="duration", gt=0, le=60)
    jitter: Duration = documented_field(
        0.0, "Up to so much more, each time anew; nothing is overtaken.", unit="duration", ge=0, le=60
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (ShapeLink(end="engine", target=target, latency_s=self.delay, jitter_s=self.jitter),)
