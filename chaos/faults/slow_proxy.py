"""A proxy that is short of CPU or gets configuration late."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, FreezeProcess, ProcessRole, ShapeLink
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field
from policies.quantity import Duration


class SlowProxyFault(Fault):
    """Stop the proxy for a part of each period, and optionally delay its configuration."""

    aim: ClassVar[TargetKind] = TargetKind.PROXIES
    incident: ClassVar[str] = (
        "A gateway that served a third of all requests was throttled to half a core by its cgroup."
    )
    breaks: ClassVar[bool] = False

    kind: Literal["slow_proxy"] = documented_field("slow_proxy", "Kind of the fault.")
    stopped_share: float = documented_field(0.5, "Share of each period in which the proxy is stopped.", gt=0, lt=1)
    period: Duration = documented_field(
        0.1,
        "Length of one run-and-stop cycle.",
        why="the default period of Linux's CFS quota",
        unit="duration",
        ge=0.02,
        le=10,
    )
    config_delay: Duration = documented_field(
        0.0, "Delay of xDS messages in each direction.", unit="duration", ge=0, le=60
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        slow = FreezeProcess(
            part=ProcessRole.PROXY, target=target, on_share=self.stopped_share, period_s=self.period
        )
        if not self.config_delay:
            return (slow,)
        return (slow, ShapeLink(end="xds", target=target, latency_s=self.config_delay))

    def chaos_mesh(self, _context: ClusterContext) -> Iterator[ChaosMeshObject]:
        differs = "a CPU hog competes with the proxy, so the share is approximate"
        if self.config_delay:
            differs += "; configuration is not delayed"
        cpu = {"workers": 1, "load": round(100 * self.stopped_share)}
        yield ChaosMeshObject(kind="StressChaos", fields={"stressors": {"cpu": cpu}}, differs=differs)

    def litmus(self, _context: ClusterContext) -> LitmusExperiment:
        return LitmusExperiment(
            experiment="pod-cpu-hog",
            env={"CPU_CORES": "1", "CPU_LOAD": str(round(100 * self.stopped_share))},
            differs="a CPU hog competes with the proxy, so the share is approximate; configuration is not delayed",
        )
