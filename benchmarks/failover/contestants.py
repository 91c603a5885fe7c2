"""The measured set-ups: Switchgear by default, and its alternatives."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from benchmarks.peers import PEERS, Peer
from chaos.testbed.static_envoy import CEILING, NAIVE, PLAIN, TUNED, StaticEnvoyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """``static`` configures an Envoy without control plane, ``picker`` is an Envoy that asks the Gateway API's
    endpoint picker, ``peer`` is another product; the rest configures Switchgear.

    ``agents``: one per engine; else the control plane probes engines. ``service_time_set``: the pool's policy sets
    the exact service time; else default and learning.
    """

    name: str
    title: str
    static: StaticEnvoyConfig | None = None
    picker: bool = False
    peer: Peer | None = None
    agents: bool = True
    service_time_set: bool = False


CONTESTANTS: Final[Mapping[str, Contestant]] = MappingProxyType(
    {
        one.name: one
        for one in (
            Contestant(name="switchgear", title="Switchgear, agents, all defaults"),
            Contestant(name="switchgear-agentless", title="Switchgear, no agents", agents=False),
            Contestant(
                name="switchgear-service-time",
                title="Switchgear, agents, service time given",
                service_time_set=True,
            ),
            Contestant(name="envoy", title="Envoy, no retries", static=PLAIN),
            Contestant(name="naive", title="Envoy, 5 naive retries", static=NAIVE),
            Contestant(name="tuned", title="Envoy, hand-tuned", static=TUNED),
            Contestant(name="static", title="Envoy, hand-set ceiling", static=CEILING),
            Contestant(
                name="picker",
                title="Envoy and the Gateway API's endpoint picker, by queue and KV cache",
                picker=True,
            ),
            *(Contestant(name=peer.name, title=peer.title, peer=peer) for peer in PEERS.values()),
        )
    }
)
