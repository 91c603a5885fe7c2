"""The kernel kills the engine for its memory: a real SIGKILL of a real process."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Kill, Part, Pull
from policies.document import described


class OomKill(Fault):
    """The engine's process gets SIGKILL; healing starts it on the port it had."""

    incident: ClassVar[str] = (
        "Host memory ran out under pinned buffers, and the OOM killer took the largest process."
    )

    kind: Literal["oom_kill"] = described("oom_kill", "Kind of the fault.")
    stays_dead: bool = described(False, "Whether it is left dead until the experiment ends.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Kill(part=Part.ENGINE, target=target, stays_dead=self.stays_dead),)
