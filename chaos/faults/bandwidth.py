"""A narrow link: all traffic passes, but slowly and in order."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment, network_chaos
from chaos.faults.fault import Fault
from policies.document import documented_field


class BandwidthFault(Fault):
    """Limit the total bandwidth between proxies and an engine, per direction."""

    incident: ClassVar[str] = "A host copied a model over the link that also carries requests."
    breaks: ClassVar[bool] = False

    kind: Literal["bandwidth"] = documented_field("bandwidth", "Kind of the fault.")
    bytes_per_second: float = documented_field(
        4000.0,
        "Bandwidth per direction.",
        why="simulated answers are only a few hundred bytes",
        unit="bytes/s",
        ge=100,
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (ShapeLink(end="engine", target=target, bytes_per_s=self.bytes_per_second),)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        # Chaos Mesh: "bps means bytes per second". The queue holds 1 s of traffic, bursts 0.1 s.
        rate = max(1, round(self.bytes_per_second))
        shaped = {"rate": f"{rate}bps", "limit": max(rate, 3000), "buffer": max(rate // 10, 1500)}
        yield network_chaos(context, "bandwidth", bandwidth=shaped)

    def litmus(self, _context: ClusterContext) -> LitmusExperiment:
        kbit = max(1, round(self.bytes_per_second * 8 / 1000))
        return LitmusExperiment(
            experiment="pod-network-rate-limit",
            env={
                "NETWORK_BANDWIDTH": f"{kbit}kbit",
                "BURST": f"{max(32, kbit // 10)}kbit",
                "LIMIT": str(max(3000, round(self.bytes_per_second))),
            },
            differs="limits what the pod sends to any destination, not what it receives",
        )
