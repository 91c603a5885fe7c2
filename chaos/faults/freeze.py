"""The engine's process stands still: a real SIGSTOP of a real process."""

from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ProcessRole
from chaos.faults.actions import FreezeProcess as FreezePull
from chaos.faults.cluster_chaos import NEEDS_SIGSTOP
from chaos.faults.fault import Fault
from policies.document import documented_field


class FreezeFault(Fault):
    """Connections are taken by the kernel and nobody answers; of a real vLLM only the engine core is stopped, so
    that its API server goes on saying that all is well.
    """

    incident: ClassVar[str] = (
        "A debugger was left attached; elsewhere a driver call never returned from the kernel."
    )
    not_in_clusters: ClassVar[str] = NEEDS_SIGSTOP

    kind: Literal["freeze"] = documented_field("freeze", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FreezePull(part=ProcessRole.ENGINE, target=target),)
