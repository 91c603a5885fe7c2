"""Base of all faults: target kind, lab actions, cluster manifests and remaining capacity."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from chaos.faults.actions import FaultAction
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment
from chaos.faults.target_kind import TargetKind
from policies.document import Spec


class Fault(Spec):
    """Settings of one kind of fault. Each subclass in this package is a kind that scenarios can use.

    ``kind`` defaults to the fault's name. ``incident`` is a production example. ``breaks``: requests should avoid
    its targets while it lasts, so checks count them as broken engines. ``not_in_clusters`` is why no cluster chaos
    tool can do it, ``not_in_litmus`` why Litmus cannot; both are empty if they can.
    """

    aim: ClassVar[TargetKind] = TargetKind.ENGINES
    incident: ClassVar[str] = ""
    breaks: ClassVar[bool] = True
    not_in_clusters: ClassVar[str] = ""
    not_in_litmus: ClassVar[str] = ""

    kind: str

    @abstractmethod
    def actions(self, target: str) -> tuple[FaultAction, ...]:
        """Actions on one target while the fault lasts; the lab undoes them afterwards."""

    def capacity_left(self) -> float:
        """Share of a target engine's capacity that stays usable, 0 to 1; 0 means requests should avoid it."""
        return 0.0 if self.breaks else 1.0

    def chaos_mesh(self, _context: ClusterContext, /) -> Iterable[ChaosMeshObject]:
        """The Chaos Mesh objects, applied together; none if ``not_in_clusters`` is set."""
        return ()

    def litmus(self, _context: ClusterContext, /) -> LitmusExperiment | None:
        """The Litmus experiment; None if ``not_in_clusters`` or ``not_in_litmus`` is set."""
        return None
