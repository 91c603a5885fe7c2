"""A whole zone is gone: its engines, and the agents beside them."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import Crash as EngineCrash
from chaos.faults.fault import Fault
from chaos.faults.pulls import BreakEngine, Kill, Part, Pull
from policies.document import described


class ZoneLoss(Fault):
    """Meant for a target with a ``zone``. Healing starts engines and agents anew, all at once.

    The zone's Envoys go on, for callers of a zone that is gone ask nobody; ``partition`` cuts them off.
    """

    incident: ClassVar[str] = "A cooling failure took an availability zone, and a third of the fleet with it."

    kind: Literal["zone_loss"] = described("zone_loss", "Kind of the fault.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (BreakEngine(engine=target, fault=EngineCrash()), Kill(part=Part.AGENT, target=target))
