"""Callers that try again, all of them, at once and often: the load that a failure makes by itself."""

from typing import ClassVar, Literal

from chaos.faults.actions import ChangeLoad, FaultAction
from chaos.faults.cluster_chaos import DONE_BY_CALLERS
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field
from policies.quantity import Duration


class RetryStormFault(Fault):
    """Whoever gets no good answer asks again; the proxies cannot tell that from new requests."""

    aim: ClassVar[TargetKind] = TargetKind.CLIENTS
    incident: ClassVar[str] = "A client library with five tries and no budget met a fleet that shed a tenth of it."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = DONE_BY_CALLERS

    kind: Literal["retry_storm"] = documented_field("retry_storm", "Kind of the fault.")
    attempts: int = documented_field(5, "Tries after the first, for each request.", ge=1, le=20)
    backoff: Duration = documented_field(0.1, "Wait before each of them.", unit="duration", ge=0, le=60)
    factor: float = documented_field(1.0, "How many times the usual load besides.", gt=0, le=100)

    def actions(self, target: str) -> tuple[FaultAction, ...]:  # noqa: ARG002 -- all callers are one target
        return (ChangeLoad(factor=self.factor, attempts=self.attempts, backoff_s=self.backoff),)
