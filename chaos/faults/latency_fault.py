"""A slow link: packets arrive late and unevenly, none is lost."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment, network_chaos
from chaos.faults.fault import Fault
from policies.document import documented_field
from policies.quantity import Duration, format_duration


class LatencyFault(Fault):
    """What proxies send to an engine and what it answers is late; new connections take a round trip longer."""

    incident: ClassVar[str] = "Traffic to one rack took a detour through another site after a link had failed."
    breaks: ClassVar[bool] = False

    kind: Literal["latency"] = documented_field("latency", "Kind of the fault.")
    delay: Duration = documented_field(0.1, "Added to everything, each way.", unit="duration", gt=0, le=60)
    jitter: Duration = documented_field(
        0.0, "Up to so much more, each time anew; nothing is overtaken.", unit="duration", ge=0, le=60
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (ShapeLink(end="engine", target=target, latency_s=self.delay, jitter_s=self.jitter),)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        delay = {
            "latency": format_duration(self.delay),
            "jitter": format_duration(self.jitter),
            "correlation": "0",
        }
        yield network_chaos(context, "delay", delay=delay)

    def litmus(self, _context: ClusterContext) -> LitmusExperiment:
        return LitmusExperiment(
            experiment="pod-network-latency",
            env={"NETWORK_LATENCY": f"{1000 * self.delay:.0f}", "JITTER": f"{1000 * self.jitter:.0f}"},
            differs="all that the pod sends is late, to everybody; what it receives is not",
        )
