"""Configuration that Envoy refuses (NACK): it keeps its previous configuration."""

from typing import ClassVar, Literal

from chaos.faults.actions import CorruptConfig, FaultAction
from chaos.faults.cluster_chaos import ON_XDS_STREAM
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class ConfigRejectedFault(Fault):
    """Corrupt every response of one xDS type so that the proxy refuses it (NACK).

    Combine it with a fault that makes the control plane send an update; without updates nothing is refused.
    """

    aim: ClassVar[TargetKind] = TargetKind.PROXIES
    incident: ClassVar[str] = "An old proxy did not know a field that a new control plane sent."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = ON_XDS_STREAM

    kind: Literal["config_rejected"] = documented_field("config_rejected", "Kind of the fault.")
    type: Literal["cds", "eds", "lds", "rds", "rtds"] = documented_field(
        "eds", "xDS type to corrupt.", why="it changes most often: it carries engine health"
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (CorruptConfig(proxy=target, type=self.type),)
