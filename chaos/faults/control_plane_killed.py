"""The control plane is killed and restarted on the same host."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, KillProcess, ProcessRole
from chaos.faults.cluster_chaos import (
    ChaosMeshObject,
    ClusterContext,
    LitmusExperiment,
    pod_deleted,
    pod_unavailable,
)
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class ControlPlaneKilledFault(Fault):
    """SIGKILL of the control plane. Healing restarts it with its state on disk."""

    aim: ClassVar[TargetKind] = TargetKind.CONTROL_PLANE
    incident: ClassVar[str] = "The OOM killer killed the control plane during an outage."
    breaks: ClassVar[bool] = False

    kind: Literal["control_plane_killed"] = documented_field("control_plane_killed", "Kind of the fault.")
    stays_dead: bool = documented_field(False, "Whether it stays dead until the experiment ends.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (KillProcess(part=ProcessRole.CONTROL_PLANE, target=target, stays_dead=self.stays_dead),)

    def chaos_mesh(self, _context: ClusterContext) -> Iterator[ChaosMeshObject]:
        yield pod_unavailable()

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        return pod_deleted(context)
