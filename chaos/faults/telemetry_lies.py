"""A proxy that is not to be believed: what it says of its calls is not what happened."""

from typing import ClassVar, Literal

from chaos.faults.actions import FalsifyTelemetry, FaultAction
from chaos.faults.cluster_chaos import ON_XDS_STREAM
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class TelemetryLiesFault(Fault):
    """Every call in the proxy's access logs and load reports is said to have ended in the same way."""

    aim: ClassVar[TargetKind] = TargetKind.PROXIES
    incident: ClassVar[str] = "One proxy with a broken clock and a full table reported every call as failed."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = ON_XDS_STREAM

    kind: Literal["telemetry_lies"] = documented_field("telemetry_lies", "Kind of the fault.")
    says: Literal["all-failed", "all-good"] = documented_field(
        "all-failed", "How every call is said to have ended."
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FalsifyTelemetry(proxy=target, says=self.says),)
