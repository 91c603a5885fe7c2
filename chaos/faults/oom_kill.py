"""The OOM killer kills the engine: a real SIGKILL."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, KillProcess, ProcessRole
from chaos.faults.cluster_chaos import (
    ChaosMeshObject,
    ClusterContext,
    LitmusExperiment,
    container_killed,
    litmus_container_killed,
)
from chaos.faults.fault import Fault
from policies.document import documented_field


class OomKillFault(Fault):
    """SIGKILL of the engine process; healing restarts it on the same port."""

    incident: ClassVar[str] = (
        "Pinned buffers exhausted host memory, and the OOM killer killed the largest process."
    )

    kind: Literal["oom_kill"] = documented_field("oom_kill", "Kind of the fault.")
    stays_dead: bool = documented_field(False, "Whether it stays dead until the experiment ends.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (KillProcess(part=ProcessRole.ENGINE, target=target, stays_dead=self.stays_dead),)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        yield container_killed(context.cluster.engine_container)

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        return litmus_container_killed(context.cluster.engine_container, context)
