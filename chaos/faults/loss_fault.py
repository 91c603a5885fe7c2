"""A lossy link: packets are dropped and retransmitted by TCP."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment, network_chaos
from chaos.faults.fault import Fault
from policies.document import documented_field


class LossFault(Fault):
    """Drop packets between proxies and an engine; connections stall until TCP retransmits."""

    incident: ClassVar[str] = "A dirty fibre dropped a few percent of packets; every health check passed."
    breaks: ClassVar[bool] = False

    kind: Literal["loss"] = documented_field("loss", "Kind of the fault.")
    percent: float = documented_field(10.0, "Packet loss per direction.", unit="percent", gt=0, lt=100)

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (ShapeLink(end="engine", target=target, loss_percent=self.percent),)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        yield network_chaos(context, "loss", loss={"loss": f"{self.percent:g}", "correlation": "0"})

    def litmus(self, _context: ClusterContext) -> LitmusExperiment:
        return LitmusExperiment(
            experiment="pod-network-loss",
            env={"NETWORK_PACKET_LOSS_PERCENTAGE": f"{self.percent:.0f}"},
            differs="drops what the pod sends to any destination, not what it receives",
        )
