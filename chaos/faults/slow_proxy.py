"""A proxy that is short of CPU, or hears of changes late."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, FreezeProcess, ProcessRole, ShapeLink
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
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

    def chaos_mesh(self, _context: ClusterContext) -> Iterator[ChaosMeshObject]:
        differs = "CPU is taken by others, who may leave more or less than meant"
        if self.config_delay:
            differs += "; configuration comes when it comes"
        cpu = {"workers": 1, "load": round(100 * self.stopped_share)}
        yield ChaosMeshObject(kind="StressChaos", fields={"stressors": {"cpu": cpu}}, differs=differs)

    def litmus(self, _context: ClusterContext) -> LitmusExperiment:
        return LitmusExperiment(
            experiment="pod-cpu-hog",
            env={"CPU_CORES": "1", "CPU_LOAD": str(round(100 * self.stopped_share))},
            differs="CPU is taken by others, who may leave more or less than meant; configuration is not late",
        )
