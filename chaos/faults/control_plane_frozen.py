"""The control plane stands still: its connections are open and nothing comes of them."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Freeze, Part, Pull
from policies.document import described


class ControlPlaneFrozen(Fault):
    """SIGSTOP; healing is SIGCONT, and it then finds itself in a world that went on."""

    aim: ClassVar[Aim] = Aim.CONTROL_PLANE
    incident: ClassVar[str] = "The virtual machine under the control plane was paused for a live migration."
    breaks: ClassVar[bool] = False

    kind: Literal["control_plane_frozen"] = described("control_plane_frozen", "Kind of the fault.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Freeze(part=Part.CONTROL_PLANE, target=target),)
