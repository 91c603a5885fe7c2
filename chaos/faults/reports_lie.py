"""False agent reports: healthy engines reported broken, or broken ones healthy."""

from typing import ClassVar, Literal

from chaos.faults.actions import FalsifyReports, FaultAction
from chaos.faults.cluster_chaos import ON_XDS_STREAM
from chaos.faults.fault import Fault
from policies.document import documented_field


class ReportsLieFault(Fault):
    """Replace the verdicts of the targets' agents. To report a broken engine as healthy, add another fault on the
    same engines.
    """

    incident: ClassVar[str] = (
        "A new agent version misread a renamed metric and reported every engine of a pool hung."
    )
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = ON_XDS_STREAM

    kind: Literal["reports_lie"] = documented_field("reports_lie", "Kind of the fault.")
    verdict: Literal["ready", "busy", "hung", "dead", "draining", "degraded"] = documented_field(
        "hung", "Verdict to report."
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FalsifyReports(engine=target, verdict=self.verdict),)
