"""A partition: a zone goes on by itself, cut from the other zones and from the control plane."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import OTHER_ZONES, FaultAction, ShapeLink
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, all_pods, partitioned
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class PartitionFault(Fault):
    """Nothing passes between the targets and other zones: neither requests nor configuration nor reports.

    An engine is lost to proxies of other zones and its agent to the control plane; a proxy loses the engines of
    other zones and its configuration. Inside the zone all is well.
    """

    aim: ClassVar[TargetKind] = TargetKind.ZONES
    incident: ClassVar[str] = "The links between two availability zones failed; both went on serving."
    # The zone's own proxies may well go on with its engines.
    breaks: ClassVar[bool] = False
    not_in_litmus: ClassVar[str] = "its network partition cuts pods from everybody, not one zone from the others"

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
        # Nothing that the rest of the site may count on.
        return 0.0

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        # The zone's engines from other zones' proxies, its proxies from their engines, all from the control plane.
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
