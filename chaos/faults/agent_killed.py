"""The agent dies; its engine keeps running."""

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


class AgentKilledFault(Fault):
    """SIGKILL of the agents of the target engines. The engines themselves stay healthy."""

    incident: ClassVar[str] = "A bad agent rollout killed the agents of half the fleet."
    breaks: ClassVar[bool] = False

    kind: Literal["agent_killed"] = documented_field("agent_killed", "Kind of the fault.")
    stays_dead: bool = documented_field(False, "Whether they stay dead until the experiment ends.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (KillProcess(part=ProcessRole.AGENT, target=target, stays_dead=self.stays_dead),)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        yield container_killed(context.cluster.agent_container)

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        return litmus_container_killed(context.cluster.agent_container, context)
