"""The agent beside an engine stands still: its last word stays, and its connections stay open."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Freeze, Part, Pull
from policies.document import described


class AgentFrozen(Fault):
    """SIGSTOP of the agents of the target engines: whoever believes the last report for ever is wrong for ever."""

    incident: ClassVar[str] = "An agent blocked in a system call went on being connected, and said no more."
    breaks: ClassVar[bool] = False

    kind: Literal["agent_frozen"] = described("agent_frozen", "Kind of the fault.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Freeze(part=Part.AGENT, target=target),)
