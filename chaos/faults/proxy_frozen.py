"""A frozen proxy with all of its open requests."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, FreezeProcess, ProcessRole
from chaos.faults.cluster_chaos import NEEDS_SIGSTOP
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field


class ProxyFrozenFault(Fault):
    """SIGSTOP of a proxy; healing sends SIGCONT. Its callers wait, and it keeps its share of every limit."""

    aim: ClassVar[TargetKind] = TargetKind.PROXIES
    incident: ClassVar[str] = "A gateway froze in an uninterruptible log write."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = NEEDS_SIGSTOP

    kind: Literal["proxy_frozen"] = documented_field("proxy_frozen", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FreezeProcess(part=ProcessRole.PROXY, target=target),)
