"""The control plane dies without a word and is started again where it was."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, KillProcess, ProcessRole
from chaos.faults.fault import Fault, TargetKind
from policies.document import documented_field


class ControlPlaneKilledFault(Fault):
    """SIGKILL. Healing starts it with what it kept on disk."""

    aim: ClassVar[TargetKind] = TargetKind.CONTROL_PLANE
    incident: ClassVar[str] = "The kernel killed the control plane for its memory in the middle of an outage."
    breaks: ClassVar[bool] = False

    kind: Literal["control_plane_killed"] = documented_field("control_plane_killed", "Kind of the fault.")
    stays_dead: bool = documented_field(False, "Whether it is left dead until the experiment ends.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (KillProcess(part=ProcessRole.CONTROL_PLANE, target=target, stays_dead=self.stays_dead),)
