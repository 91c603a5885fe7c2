"""What every fault has in common: its target, its actions, its manifests for clusters, and the capacity left."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from chaos.faults.actions import FaultAction
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment
from chaos.faults.target_kind import TargetKind
from policies.document import Spec


class Fault(Spec):
    """Settings of one kind of fault. A subclass in a file of this package is a kind that scenarios may name.

    Each has a ``kind`` with its own name as default. ``incident`` is where this happens in production. ``breaks``:
    requests had better avoid its targets while it lasts, so checks count them as bad engines. ``not_in_clusters``
    is why no chaos tool of a cluster can make it, ``not_in_litmus`` why Litmus cannot; empty where they can.
    """

    aim: ClassVar[TargetKind] = TargetKind.ENGINES
    incident: ClassVar[str] = ""
    breaks: ClassVar[bool] = True
    not_in_clusters: ClassVar[str] = ""
    not_in_litmus: ClassVar[str] = ""

    kind: str

    @abstractmethod
    def actions(self, target: str) -> tuple[FaultAction, ...]:
        """What is done to one target for as long as the fault lasts; the lab takes it back afterwards."""

    def capacity_left(self) -> float:
        """Share of a target engine's work that is still worth having: 0 for one that is better left alone."""
        return 0.0 if self.breaks else 1.0

    def chaos_mesh(self, _context: ClusterContext, /) -> Iterable[ChaosMeshObject]:
        """The objects of Chaos Mesh, side by side; none where ``not_in_clusters`` has the reason."""
        return ()

    def litmus(self, _context: ClusterContext, /) -> LitmusExperiment | None:
        """The experiment of Litmus; None where there is a reason against it."""
        return None
