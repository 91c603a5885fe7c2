"""Clocks that differ: the times in an engine's reports are off."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Pull, Reports
from policies.document import described
from policies.quantity import Duration


class ClockSkew(Fault):
    """Everything in a report that is told as a time ago, or from now, is off by this much."""

    incident: ClassVar[str] = "NTP was blocked after a firewall change; one rack ran ten minutes ahead."
    breaks: ClassVar[bool] = False

    kind: Literal["clock_skew"] = described("clock_skew", "Kind of the fault.")
    offset: Duration = described(600.0, "By how much.", unit="duration", gt=0, le=86_400)
    direction: Literal["ahead", "behind"] = described("ahead", "Whether the engine's clock runs ahead or behind.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Reports(engine=target, clock_skew_s=self.offset if self.direction == "ahead" else -self.offset),)
