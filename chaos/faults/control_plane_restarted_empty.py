"""The control plane restarts on a new host without its state."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, KillProcess, ProcessRole
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment, pod_deleted
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class ControlPlaneRestartedEmptyFault(Fault):
    """SIGKILL of the control plane; healing restarts it with an empty disk. Proxies still hold their last
    configuration.
    """

    aim: ClassVar[TargetKind] = TargetKind.CONTROL_PLANE
    incident: ClassVar[str] = (
        "The control plane was rescheduled to another node while half of the engines were ejected."
    )
    breaks: ClassVar[bool] = False

    kind: Literal["control_plane_restarted_empty"] = documented_field(
        "control_plane_restarted_empty", "Kind of the fault."
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (KillProcess(part=ProcessRole.CONTROL_PLANE, target=target, empty=True),)

    def chaos_mesh(self, _context: ClusterContext) -> Iterator[ChaosMeshObject]:
        yield ChaosMeshObject(
            kind="PodChaos",
            fields={"action": "pod-kill", "gracePeriod": 0},
            differs="it restarts empty only if its state is not on a persistent volume",
        )

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        return pod_deleted(context)
