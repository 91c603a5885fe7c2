"""A proxy that stands still with all the requests it holds."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, FreezeProcess, ProcessRole
from chaos.faults.cluster_chaos import NEEDS_SIGSTOP
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class ProxyFrozenFault(Fault):
    """SIGSTOP; callers of this proxy wait, and its share of every limit stays in its hands. Healing is SIGCONT."""

    aim: ClassVar[TargetKind] = TargetKind.PROXIES
    incident: ClassVar[str] = "A gateway stood still in an uninterruptible write of its logs."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = NEEDS_SIGSTOP

    kind: Literal["proxy_frozen"] = documented_field("proxy_frozen", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FreezeProcess(part=ProcessRole.PROXY, target=target),)
