"""Small experiments, made by hand."""

from dataclasses import replace

from chaos.faults.library import AnyFault
from chaos.scenario.model import ScenarioSpec
from chaos.scenario.plan import EngineSpot, Experiment, Outage, ProxySpot


def experiment(
    *outages: Outage, engines: int = 4, slots: int = 4, proxies: int = 1, seconds: float = 8.0, **spec: object
) -> Experiment:
    """Engines of one kind at 60 % load; ``spec`` is the scenario's, as YAML would say it."""
    said = ScenarioSpec.model_validate({"title": "made by hand", "incident": "none", **spec})
    zones = said.topology.zones
    made = Experiment(
        name="by-hand",
        spec=said,
        engines=tuple(
            EngineSpot(name=f"e{place}", zone=zones[place % len(zones)], slots=slots) for place in range(engines)
        ),
        proxies=tuple(ProxySpot(name=f"p{place}", zone=zones[place % len(zones)]) for place in range(proxies)),
        outages=outages,
        service_s=said.topology.service_time,
        rate_per_s=1.0,
        seconds=seconds,
        seed=said.seed,
    )
    return replace(made, rate_per_s=0.6 * made.capacity_per_s)


def outage(fault: AnyFault, *targets: str, start_s: float = 2.0, end_s: float = 5.0) -> Outage:
    return Outage(id=f"{fault.kind}-1", fault=fault, targets=targets, start_s=start_s, end_s=end_s)
