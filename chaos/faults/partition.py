"""A partition: a zone goes on by itself, cut from the other zones and from the control plane."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import OTHER_ZONES, Pull, Wire
from policies.document import described


class Partition(Fault):
    """Nothing passes between the targets and other zones: neither requests nor configuration nor reports.

    An engine is lost to proxies of other zones and its agent to the control plane; a proxy loses the engines of
    other zones and its configuration. Inside the zone all is well.
    """

    aim: ClassVar[Aim] = Aim.ZONES
    incident: ClassVar[str] = "The links between two availability zones failed; both went on serving."
    # The zone's own proxies may well go on with its engines.
    breaks: ClassVar[bool] = False

    kind: Literal["partition"] = described("partition", "Kind of the fault.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        if target.startswith("p"):
            return (
                Wire(end="xds", target=target, black_hole=True),
                Wire(end="engine", target=OTHER_ZONES, sources=(target,), black_hole=True),
            )
        return (
            Wire(end="engine", target=target, sources=(OTHER_ZONES,), black_hole=True),
            Wire(end="agent", target=target, black_hole=True),
        )

    def capacity_left(self) -> float:
        # Nothing that the rest of the site may count on.
        return 0.0
