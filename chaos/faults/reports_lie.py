"""Reports that are wrong: well engines are said to be ill, or ill ones well."""

from typing import ClassVar, Literal

from chaos.faults.actions import FalsifyReports, FaultAction
from chaos.faults.cluster_chaos import ON_XDS_STREAM
from chaos.faults.fault import Fault
from policies.document import documented_field


class ReportsLieFault(Fault):
    """Whatever the agents of the targets say, the control plane hears this verdict.

    To let a broken engine be praised, strike the same engines with another fault besides.
    """

    incident: ClassVar[str] = "A new agent misread a renamed metric and called every engine of a pool hung."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = ON_XDS_STREAM

    kind: Literal["reports_lie"] = documented_field("reports_lie", "Kind of the fault.")
    verdict: Literal["ready", "busy", "hung", "dead", "draining", "degraded"] = documented_field(
        "hung", "What the control plane is told."
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (FalsifyReports(engine=target, verdict=self.verdict),)
