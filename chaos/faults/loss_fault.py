"""A lossy link: packets are dropped, and come again when the kernel of their sender has noticed."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment, network_chaos
from chaos.faults.fault import Fault
from policies.document import documented_field


class LossFault(Fault):
    """Packets between proxies and an engine are lost; connections stall until TCP has sent them again."""

    incident: ClassVar[str] = "A dirty fibre lost a few packets in a hundred; every health check passed."
    breaks: ClassVar[bool] = False

    kind: Literal["loss"] = documented_field("loss", "Kind of the fault.")
    percent: float = documented_field(10.0, "Packets lost, each way.", unit="percent", gt=0, lt=100)

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (ShapeLink(end="engine", target=target, loss_percent=self.percent),)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        yield network_chaos(context, "loss", loss={"loss": f"{self.percent:g}", "correlation": "0"})

    def litmus(self, _context: ClusterContext) -> LitmusExperiment:
        return LitmusExperiment(
            experiment="pod-network-loss",
            env={"NETWORK_PACKET_LOSS_PERCENTAGE": f"{self.percent:.0f}"},
            differs="packets that the pod sends are lost, to everybody; what it receives is not",
        )
