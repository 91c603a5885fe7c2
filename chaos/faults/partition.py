"""A partition: a zone is cut from the other zones and the control plane but keeps running."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import OTHER_ZONES, FaultAction, ShapeLink
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, all_pods, partitioned
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class PartitionFault(Fault):
    """Cut the targets from other zones and the control plane: requests, configuration and reports.

    Engines lose the proxies of other zones, agents lose the control plane, and proxies lose the engines of other
    zones and their configuration. Traffic within the zone is unaffected.
    """

    aim: ClassVar[TargetKind] = TargetKind.ZONES
    incident: ClassVar[str] = "The links between two availability zones failed; both kept serving."
    # The zone's own proxies can still use its engines.
    breaks: ClassVar[bool] = False
    not_in_litmus: ClassVar[str] = "its network partition isolates pods completely, not one zone from the others"

    kind: Literal["partition"] = documented_field("partition", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        if target.startswith("p"):
            return (
                ShapeLink(end="xds", target=target, black_hole=True),
                ShapeLink(end="engine", target=OTHER_ZONES, sources=(target,), black_hole=True),
            )
        return (
            ShapeLink(end="engine", target=target, sources=(OTHER_ZONES,), black_hole=True),
            ShapeLink(end="agent", target=target, black_hole=True),
        )

    def capacity_left(self) -> float:
        # The other zones cannot use the zone's capacity.
        return 0.0

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        # Cuts the zone's engines from other zones' proxies, its proxies from other zones' engines, and all from
        # the control plane.
        cluster, zone = context.cluster, context.zone
        for inside, outside in (
            (TargetKind.ENGINES, TargetKind.PROXIES),
            (TargetKind.PROXIES, TargetKind.ENGINES),
        ):
            chosen = all_pods(cluster, inside, zone)
            for other in context.zones:
                if other != zone:
                    yield partitioned(all_pods(cluster, outside, other), chosen)
            yield partitioned(all_pods(cluster, TargetKind.CONTROL_PLANE), chosen)
