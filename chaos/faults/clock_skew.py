"""Clock skew: the times in an engine's reports are wrong."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FalsifyReports, FaultAction
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext
from chaos.faults.fault import Fault
from policies.document import documented_field
from policies.quantity import Duration, format_duration


class ClockSkewFault(Fault):
    """Shift all times in the agents' reports by an offset."""

    incident: ClassVar[str] = "NTP was blocked after a firewall change; one rack ran ten minutes ahead."
    breaks: ClassVar[bool] = False
    not_in_litmus: ClassVar[str] = "Litmus has no clock fault"

    kind: Literal["clock_skew"] = documented_field("clock_skew", "Kind of the fault.")
    offset: Duration = documented_field(600.0, "Size of the skew.", unit="duration", gt=0, le=86_400)
    direction: Literal["ahead", "behind"] = documented_field(
        "ahead", "Whether the engine's clock runs ahead or behind."
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (
            FalsifyReports(engine=target, clock_skew_s=self.offset if self.direction == "ahead" else -self.offset),
        )

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        sign = "" if self.direction == "ahead" else "-"
        offset = f"{sign}{format_duration(self.offset)}"
        fields = {"timeOffset": offset, "containerNames": [context.cluster.agent_container]}
        yield ChaosMeshObject(kind="TimeChaos", fields=fields)
