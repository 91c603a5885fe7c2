"""A proxy that is short of CPU, or hears of changes late."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, FreezeProcess, ProcessRole, ShapeLink
from chaos.faults.fault import Fault, TargetKind
from policies.document import documented_field
from policies.quantity import Duration


class SlowProxyFault(Fault):
    """The proxy runs for a part of each period only; what the control plane sends it may be late besides."""

    aim: ClassVar[TargetKind] = TargetKind.PROXIES
    incident: ClassVar[str] = (
        "A gateway was throttled to half a core by its cgroup while it served a third of all."
    )
    breaks: ClassVar[bool] = False

    kind: Literal["slow_proxy"] = documented_field("slow_proxy", "Kind of the fault.")
    stopped_share: float = documented_field(0.5, "Share of the time in which it stands still.", gt=0, lt=1)
    period: Duration = documented_field(
        0.1,
        "How long one turn of running and standing still takes.",
        why="Linux's CFS quota has this period",
        unit="duration",
        ge=0.02,
        le=10,
    )
    config_delay: Duration = documented_field(
        0.0, "Added to what the control plane sends it and to its answers.", unit="duration", ge=0, le=60
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        slow = FreezeProcess(
            part=ProcessRole.PROXY, target=target, on_share=self.stopped_share, period_s=self.period
        )
        if not self.config_delay:
            return (slow,)
        return (slow, ShapeLink(end="xds", target=target, latency_s=self.config_delay))
