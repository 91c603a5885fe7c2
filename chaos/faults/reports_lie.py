"""Reports that are wrong: well engines are said to be ill, or ill ones well."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Pull, Reports
from policies.document import described


class ReportsLie(Fault):
    """Whatever the agents of the targets say, the control plane hears this verdict.

    To let a broken engine be praised, strike the same engines with another fault besides.
    """

    incident: ClassVar[str] = "A new agent misread a renamed metric and called every engine of a pool hung."
    breaks: ClassVar[bool] = False

    kind: Literal["reports_lie"] = described("reports_lie", "Kind of the fault.")
    verdict: Literal["ready", "busy", "hung", "dead", "draining", "degraded"] = described(
        "hung", "What the control plane is told."
    )

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Reports(engine=target, verdict=self.verdict),)
