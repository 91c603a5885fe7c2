"""Configuration that Envoy refuses: it goes on with what it had, and says so."""

from typing import ClassVar, Literal

from chaos.faults.actions import CorruptConfig, FaultAction
from chaos.faults.cluster_chaos import ON_XDS_STREAM
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class ConfigRejectedFault(Fault):
    """Every response of one type is spoilt on its way, so that the proxy answers with a NACK.

    What is not sent cannot be refused: another fault must give the control plane something to say.
    """

    aim: ClassVar[TargetKind] = TargetKind.PROXIES
    incident: ClassVar[str] = "One old proxy did not know a field that a new control plane sent to all."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = ON_XDS_STREAM

    kind: Literal["config_rejected"] = documented_field("config_rejected", "Kind of the fault.")
    type: Literal["cds", "eds", "lds", "rds", "rtds"] = documented_field(
        "eds", "Which configuration.", why="the one that changes most: verdicts on engines travel in it"
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (CorruptConfig(proxy=target, type=self.type),)
