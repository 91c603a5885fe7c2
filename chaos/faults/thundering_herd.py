"""Everybody comes back at once: requests that were held back leave at the moment of recovery."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Callers, Pull
from policies.document import described


class ThunderingHerd(Fault):
    """While it lasts callers ask less, or nothing; when it ends so many requests leave in one moment."""

    aim: ClassVar[Aim] = Aim.CLIENTS
    incident: ClassVar[str] = "A status page turned green and every waiting user pressed the button again."
    breaks: ClassVar[bool] = False

    kind: Literal["thundering_herd"] = described("thundering_herd", "Kind of the fault.")
    at_once: int = described(100, "Requests that leave at the end.", unit="requests", ge=1, le=10_000)
    meanwhile: float = described(0.0, "How many times the usual load until then.", ge=0, le=100)

    def pulls(self, target: str) -> tuple[Pull, ...]:  # noqa: ARG002 -- all callers are one target
        return (Callers(factor=self.meanwhile, at_once=self.at_once),)
