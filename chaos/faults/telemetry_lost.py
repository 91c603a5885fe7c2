"""A proxy that is no longer heard of: its access logs and load reports reach nobody."""

from typing import ClassVar, Literal

from chaos.faults.actions import FalsifyTelemetry, FaultAction
from chaos.faults.cluster_chaos import ON_XDS_STREAM
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class TelemetryLostFault(Fault):
    """Configuration still reaches the proxy; nothing of what it sees reaches the control plane."""

    aim: ClassVar[TargetKind] = TargetKind.PROXIES
    incident: ClassVar[str] = (
        "A collector was overloaded and refused streams for an hour; proxies went on serving."
    )
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = ON_XDS_STREAM

    kind: Literal["telemetry_lost"] = documented_field("telemetry_lost", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FalsifyTelemetry(proxy=target, lost=True),)
