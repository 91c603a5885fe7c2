"""The control plane comes back on a new host: without anything it had learnt."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Kill, Part, Pull
from policies.document import described


class ControlPlaneRestartedEmpty(Fault):
    """SIGKILL; healing starts it with an empty disk, in front of proxies that have all they were told before."""

    aim: ClassVar[Aim] = Aim.CONTROL_PLANE
    incident: ClassVar[str] = "The control plane was rescheduled to another node while half the engines were out."
    breaks: ClassVar[bool] = False

    kind: Literal["control_plane_restarted_empty"] = described(
        "control_plane_restarted_empty", "Kind of the fault."
    )

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Kill(part=Part.CONTROL_PLANE, target=target, empty=True),)
