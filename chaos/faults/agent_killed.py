"""The agent beside an engine dies; the engine does not."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Kill, Part, Pull
from policies.document import described


class AgentKilled(Fault):
    """SIGKILL of the agents of the target engines. Without its agent an engine is neither better nor worse."""

    incident: ClassVar[str] = "A bad roll-out of the agent left half the fleet without one."
    breaks: ClassVar[bool] = False

    kind: Literal["agent_killed"] = described("agent_killed", "Kind of the fault.")
    stays_dead: bool = described(False, "Whether they are left dead until the experiment ends.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Kill(part=Part.AGENT, target=target, stays_dead=self.stays_dead),)
