"""A slow link: packets are delayed with jitter, none is lost."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment, network_chaos
from chaos.faults.fault import Fault
from policies.document import documented_field
from policies.quantity import Duration, format_duration


class LatencyFault(Fault):
    """Delay traffic between proxies and an engine, per direction. New connections take a round trip longer."""

    incident: ClassVar[str] = "After a link failure, traffic to one rack took a detour through another site."
    breaks: ClassVar[bool] = False

    kind: Literal["latency"] = documented_field("latency", "Kind of the fault.")
    delay: Duration = documented_field(0.1, "Added delay per direction.", unit="duration", gt=0, le=60)
    jitter: Duration = documented_field(
        0.0, "Maximum random extra delay; packets stay in order.", unit="duration", ge=0, le=60
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
            differs="delays what the pod sends to any destination, not what it receives",
        )
