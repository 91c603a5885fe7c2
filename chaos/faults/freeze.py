"""The engine's process stands still: a real SIGSTOP of a real process."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Freeze as FreezePull
from chaos.faults.pulls import Part, Pull
from policies.document import described


class Freeze(Fault):
    """Connections are taken by the kernel and nobody answers; of a real vLLM only the engine core is stopped, so
    that its API server goes on saying that all is well.
    """

    incident: ClassVar[str] = (
        "A debugger was left attached; elsewhere a driver call never returned from the kernel."
    )

    kind: Literal["freeze"] = described("freeze", "Kind of the fault.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (FreezePull(part=Part.ENGINE, target=target),)
