"""What is asked of decisions, and what is said of engines."""

from collections.abc import Callable

from engine.report import EngineReport, Verdict
from tests.xds_server.decide.ejection.ejection_simulation import World
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.model.fleet import with_report

Wanted = Callable[[dict[str, EngineDecision]], bool]
IN, OUT = Health.HEALTHY, Health.UNHEALTHY


def is_out(engine: str) -> Wanted:
    """Whether the engine is out, asked of the decisions of one moment."""
    return lambda decided: decided[engine].health is not IN


def is_back(engine: str) -> Wanted:
    """Whether it is in with all of its traffic."""
    return lambda decided: decided[engine].health is IN and decided[engine].traffic_percent == 100


def is_in(engine: str) -> Wanted:
    """Whether it is in, be it on trial."""
    return lambda decided: decided[engine].health is IN


def said(world: World, engine: str, verdict: Verdict, times: int = 2) -> World:
    """So many looks at once that say this of an engine."""
    for _ in range(times):
        sequence = world.sequence()
        report = EngineReport(
            pool="pool",
            engine=engine,
            verdict=verdict,
            evidence="said",
            observed_at_s=world.now_s,
            sequence=sequence,
        )
        world.fleet = with_report(world.fleet, report, world.now_s)
    return world


def still(zones: str, **resilience: object) -> World:
    """A pool without calls that nobody looks at but the test."""
    world = World(zones, rate_per_engine=0, resilience=dict(resilience))
    world.probing = False
    return world
