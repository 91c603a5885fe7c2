"""The kernel kills the engine for its memory: a real SIGKILL of a real process."""

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
    """The engine's process gets SIGKILL; healing starts it on the port it had."""

    incident: ClassVar[str] = (
        "Host memory ran out under pinned buffers, and the OOM killer took the largest process."
    )

    kind: Literal["oom_kill"] = documented_field("oom_kill", "Kind of the fault.")
    stays_dead: bool = documented_field(False, "Whether it is left dead until the experiment ends.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (KillProcess(part=ProcessRole.ENGINE, target=target, stays_dead=self.stays_dead),)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        yield container_killed(context.cluster.engine_container)

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        return litmus_container_killed(context.cluster.engine_container, context)
