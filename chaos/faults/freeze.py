"""The engine process freezes: a real SIGSTOP."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ProcessRole
from chaos.faults.actions import FreezeProcess as FreezePull
from chaos.faults.cluster_chaos import NEEDS_SIGSTOP
from chaos.faults.fault import Fault
from policies.document import documented_field


class FreezeFault(Fault):
    """SIGSTOP of the engine process. The kernel accepts connections, but no request is answered. With real vLLM
    only the engine core is stopped, so the API server still reports healthy.
    """

    incident: ClassVar[str] = "A debugger was left attached; another time, a driver call never returned."
    not_in_clusters: ClassVar[str] = NEEDS_SIGSTOP

    kind: Literal["freeze"] = documented_field("freeze", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FreezePull(part=ProcessRole.ENGINE, target=target),)
