"""A partition: a zone goes on by itself, cut from the other zones and from the control plane."""

from typing import ClassVar, Literal

from chaos.faults.actions import OTHER_ZONES, FaultAction, ShapeLink
from chaos.faults.fault import Fault, TargetKind
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
