"""The agent beside an engine dies; the engine does not."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, KillProcess, ProcessRole
from chaos.faults.fault import Fault
from policies.document import documented_field


class AgentKilledFault(Fault):
    """SIGKILL of the agents of the target engines. Without its agent an engine is neither better nor worse."""

    incident: ClassVar[str] = "A bad roll-out of the agent left half the fleet without one."
    breaks: ClassVar[bool] = False

    kind: Literal["agent_killed"] = documented_field("agent_killed", "Kind of the fault.")
    stays_dead: bool = documented_field(False, "Whether they are left dead until the experiment ends.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (KillProcess(part=ProcessRole.AGENT, target=target, stays_dead=self.stays_dead),)
