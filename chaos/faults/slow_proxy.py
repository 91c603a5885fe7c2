"""A proxy that is short of CPU, or hears of changes late."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Freeze, Part, Pull, Wire
from policies.document import described
from policies.quantity import Duration


class SlowProxy(Fault):
    """The proxy runs for a part of each period only; what the control plane sends it may be late besides."""

    aim: ClassVar[Aim] = Aim.PROXIES
    incident: ClassVar[str] = (
        "A gateway was throttled to half a core by its cgroup while it served a third of all."
    )
    breaks: ClassVar[bool] = False

    kind: Literal["slow_proxy"] = described("slow_proxy", "Kind of the fault.")
    stopped_share: float = described(0.5, "Share of the time in which it stands still.", gt=0, lt=1)
    period: Duration = described(
        0.1,
        "How long one turn of running and standing still takes.",
        why="Linux's CFS quota has this period",
        unit="duration",
        ge=0.02,
        le=10,
    )
    config_delay: Duration = described(
        0.0, "Added to what the control plane sends it and to its answers.", unit="duration", ge=0, le=60
    )

    def pulls(self, target: str) -> tuple[Pull, ...]:
        slow = Freeze(part=Part.PROXY, target=target, on_share=self.stopped_share, period_s=self.period)
        if not self.config_delay:
            return (slow,)
        return (slow, Wire(end="xds", target=target, latency_s=self.config_delay))
