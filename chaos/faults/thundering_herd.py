"""A thundering herd: held-back requests are all sent at the moment of recovery."""

from typing import ClassVar, Literal

from chaos.faults.actions import ChangeLoad, FaultAction
from chaos.faults.cluster_chaos import DONE_BY_CALLERS
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class ThunderingHerdFault(Fault):
    """Callers send less or nothing while it lasts; when it ends, a burst of requests is sent at once."""

    aim: ClassVar[TargetKind] = TargetKind.CLIENTS
    incident: ClassVar[str] = "A status page turned green and every waiting user retried."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = DONE_BY_CALLERS

    kind: Literal["thundering_herd"] = documented_field("thundering_herd", "Kind of the fault.")
    at_once: int = documented_field(100, "Requests sent at the end.", unit="requests", ge=1, le=10_000)
    meanwhile: float = documented_field(0.0, "Factor on the usual load until then.", ge=0, le=100)

    def actions(self, target: str) -> tuple[FaultAction, ...]:  # noqa: ARG002 -- all callers are one target
        return (ChangeLoad(factor=self.meanwhile, at_once=self.at_once),)
