"""A slow link: packets arrive late and unevenly, none is lost."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Pull, Wire
from policies.document import described
from policies.quantity import Duration


class Latency(Fault):
    """What proxies send to an engine and what it answers is late; new connections take a round trip longer."""

    incident: ClassVar[str] = "Traffic to one rack took a detour through another site after a link had failed."
    breaks: ClassVar[bool] = False

    kind: Literal["latency"] = described("latency", "Kind of the fault.")
    delay: Duration = described(0.1, "Added to everything, each way.", unit="duration", gt=0, le=60)
    jitter: Duration = described(
        0.0, "Up to so much more, each time anew; nothing is overtaken.", unit="duration", ge=0, le=60
    )

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Wire(end="engine", target=target, latency_s=self.delay, jitter_s=self.jitter),)
