"""Who is measured, one value each: Switchgear as it comes, and what people have without it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from benchmarks.failover.picker_policy import By
from chaos.testbed.static_envoy import CEILING, NAIVE, PLAIN, TUNED, StaticEnvoyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """``static`` is the configuration of one without a control plane, ``picks_by`` says what an endpoint picker
    goes by; the rest says how Switchgear is set up.

    ``agents``: one beside each engine; else the control plane asks the engines. ``service_time_told``: the pool
    says its exact service time; else that is left to default and learning.
    """

    name: str
    title: str
    static: StaticEnvoyConfig | None = None
    picks_by: By | None = None
    agents: bool = True
    service_time_told: bool = False


CONTESTANTS: Final[Mapping[str, Contestant]] = MappingProxyType(
    {
        one.name: one
        for one in (
            Contestant(name="switchgear", title="Switchgear, agents, all defaults"),
            Contestant(name="switchgear-agentless", title="Switchgear, no agents", agents=False),
            Contestant(
                name="switchgear-told",
                title="Switchgear, agents, service time given",
                service_time_told=True,
            ),
            Contestant(name="envoy", title="Envoy, no retries", static=PLAIN),
            Contestant(name="naive", title="Envoy, 5 naive retries", static=NAIVE),
            Contestant(name="tuned", title="Envoy, hand-tuned", static=TUNED),
            Contestant(name="static", title="Envoy, hand-set ceiling", static=CEILING),
            Contestant(
                name="picker", title="Envoy and an endpoint picker, by queue and KV cache", picks_by="metrics"
            ),
            Contestant(
                name="picker-counting",
                title="Envoy and an endpoint picker, by its own count of requests in flight",
                picks_by="in_flight",
            ),
        )
    }
)
