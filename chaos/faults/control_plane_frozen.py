"""The control plane freezes: its connections stay open but carry nothing."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, FreezeProcess, ProcessRole
from chaos.faults.cluster_chaos import NEEDS_SIGSTOP
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class ControlPlaneFrozenFault(Fault):
    """SIGSTOP of the control plane; healing sends SIGCONT. It resumes with outdated state."""

    aim: ClassVar[TargetKind] = TargetKind.CONTROL_PLANE
    incident: ClassVar[str] = "The control plane's virtual machine was paused for a live migration."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = NEEDS_SIGSTOP

    kind: Literal["control_plane_frozen"] = documented_field("control_plane_frozen", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FreezeProcess(part=ProcessRole.CONTROL_PLANE, target=target),)
