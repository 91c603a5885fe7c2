"""The agent freezes: its last report stays in force and its connections stay open."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, FreezeProcess, ProcessRole
from chaos.faults.cluster_chaos import NEEDS_SIGSTOP
from chaos.faults.fault import Fault
from policies.document import documented_field


class AgentFrozenFault(Fault):
    """SIGSTOP of the agents of the target engines. Their last reports never change, so the control plane must
    expire them.
    """

    incident: ClassVar[str] = "An agent blocked in a system call stayed connected but sent no more reports."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = NEEDS_SIGSTOP

    kind: Literal["agent_frozen"] = documented_field("agent_frozen", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FreezeProcess(part=ProcessRole.AGENT, target=target),)
