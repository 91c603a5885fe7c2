"""The control plane dies without a word and is started again where it was."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Kill, Part, Pull
from policies.document import described


class ControlPlaneKilled(Fault):
    """SIGKILL. Healing starts it with what it kept on disk."""

    aim: ClassVar[Aim] = Aim.CONTROL_PLANE
    incident: ClassVar[str] = "The kernel killed the control plane for its memory in the middle of an outage."
    breaks: ClassVar[bool] = False

    kind: Literal["control_plane_killed"] = described("control_plane_killed", "Kind of the fault.")
    stays_dead: bool = described(False, "Whether it is left dead until the experiment ends.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Kill(part=Part.CONTROL_PLANE, target=target, stays_dead=self.stays_dead),)
