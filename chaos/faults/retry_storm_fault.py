"""A retry storm: failures cause retries, and retries cause load."""

from typing import ClassVar, Literal

from chaos.faults.actions import ChangeLoad, FaultAction
from chaos.faults.cluster_chaos import DONE_BY_CALLERS
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field
from policies.quantity import Duration


class RetryStormFault(Fault):
    """Callers retry every failed request. Proxies cannot tell these retries from new requests."""

    aim: ClassVar[TargetKind] = TargetKind.CLIENTS
    incident: ClassVar[str] = (
        "A client library retried five times without a retry budget while the fleet shed a tenth of its load."
    )
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = DONE_BY_CALLERS

    kind: Literal["retry_storm"] = documented_field("retry_storm", "Kind of the fault.")
    attempts: int = documented_field(5, "Retries per request.", ge=1, le=20)
    backoff: Duration = documented_field(0.1, "Wait before each retry.", unit="duration", ge=0, le=60)
    factor: float = documented_field(1.0, "Factor on the usual load, in addition.", gt=0, le=100)

    def actions(self, target: str) -> tuple[FaultAction, ...]:  # noqa: ARG002 -- all callers are one target
        return (ChangeLoad(factor=self.factor, attempts=self.attempts, backoff_s=self.backoff),)
