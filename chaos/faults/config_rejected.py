"""Configuration that Envoy refuses: it goes on with what it had, and says so."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Corrupt, Pull
from policies.document import described


class ConfigRejected(Fault):
    """Every response of one type is spoilt on its way, so that the proxy answers with a NACK.

    What is not sent cannot be refused: another fault must give the control plane something to say.
    """

    aim: ClassVar[Aim] = Aim.PROXIES
    incident: ClassVar[str] = "One old proxy did not know a field that a new control plane sent to all."
    breaks: ClassVar[bool] = False

    kind: Literal["config_rejected"] = described("config_rejected", "Kind of the fault.")
    type: Literal["cds", "eds", "lds", "rds", "rtds"] = described(
        "eds", "Which configuration.", why="the one that changes most: verdicts on engines travel in it"
    )

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Corrupt(proxy=target, type=self.type),)
