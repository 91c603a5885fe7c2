"""A link that drops all packets without a reset; new connections time out."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.cluster_chaos import (
    ChaosMeshObject,
    ClusterContext,
    LitmusExperiment,
    all_pods,
    network_chaos,
    partitioned,
)
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class BlackHoleFault(Fault):
    """Drop all packets between proxies and a healthy engine. Connections stay open and silent; closes are dropped
    too.
    """

    incident: ClassVar[str] = "A firewall rule dropped packets to a healthy host."

    kind: Literal["black_hole"] = documented_field("black_hole", "Kind of the fault.")
    agent: bool = documented_field(False, "Whether to also cut the engine's agent from the control plane.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        engine = ShapeLink(end="engine", target=target, black_hole=True)
        return (engine, ShapeLink(end="agent", target=target, black_hole=True)) if self.agent else (engine,)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        yield network_chaos(context, "partition")
        if self.agent:
            yield partitioned(all_pods(context.cluster, TargetKind.CONTROL_PLANE))

    def litmus(self, _context: ClusterContext) -> LitmusExperiment:
        return LitmusExperiment(
            experiment="pod-network-loss",
            env={"NETWORK_PACKET_LOSS_PERCENTAGE": "100"},
            differs="drops everything the pod sends, including its agent's reports",
        )
