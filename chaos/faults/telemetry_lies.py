"""A proxy with false telemetry."""

from typing import ClassVar, Literal

from chaos.faults.actions import FalsifyTelemetry, FaultAction
from chaos.faults.cluster_chaos import ON_XDS_STREAM
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class TelemetryLiesFault(Fault):
    """Make the proxy's access logs and load reports show the same outcome for every call."""

    aim: ClassVar[TargetKind] = TargetKind.PROXIES
    incident: ClassVar[str] = "One proxy with a full connection table reported every call as failed."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = ON_XDS_STREAM

    kind: Literal["telemetry_lies"] = documented_field("telemetry_lies", "Kind of the fault.")
    says: Literal["all-failed", "all-good"] = documented_field("all-failed", "Outcome to report for every call.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FalsifyTelemetry(proxy=target, says=self.says),)
