"""A proxy whose access logs and load reports are lost."""

from typing import ClassVar, Literal

from chaos.faults.actions import FalsifyTelemetry, FaultAction
from chaos.faults.cluster_chaos import ON_XDS_STREAM
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class TelemetryLostFault(Fault):
    """Drop the proxy's access logs and load reports. It still receives configuration."""

    aim: ClassVar[TargetKind] = TargetKind.PROXIES
    incident: ClassVar[str] = "An overloaded collector refused streams for an hour; proxies kept serving."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = ON_XDS_STREAM

    kind: Literal["telemetry_lost"] = documented_field("telemetry_lost", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FalsifyTelemetry(proxy=target, lost=True),)
