"""Predicates on decisions, and reports on engines."""

from collections.abc import Callable

from engine.report import EngineReport, Verdict
from tests.xds_server.decide.ejection.ejection_simulation import World
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.model.fleet import with_report

Wanted = Callable[[dict[str, EngineDecision]], bool]
IN, OUT = Health.HEALTHY, Health.UNHEALTHY


def is_out(engine: str) -> Wanted:
    """Whether the engine is ejected, in the decisions of one moment."""
    return lambda decided: decided[engine].health is not IN


def is_back(engine: str) -> Wanted:
    """Whether it is in rotation with all of its traffic."""
    return lambda decided: decided[engine].health is IN and decided[engine].traffic_percent == 100


def is_in(engine: str) -> Wanted:
    """Whether it is in rotation, possibly on trial."""
    return lambda decided: decided[engine].health is IN


def said(world: World, engine: str, verdict: Verdict, times: int = 2) -> World:
    """This many probe results at once with this verdict."""
    for _ in range(times):
        sequence = world.sequence()
        report = EngineReport(
            pool="pool",
            engine=engine,
            verdict=verdict,
            evidence="test",
            observed_at_s=world.now_s,
            sequence=sequence,
        )
        world.fleet = with_report(world.fleet, report, world.now_s)
    return world


def still(zones: str, **resilience: object) -> World:
    """A pool without calls and without a prober."""
    world = World(zones, rate_per_engine=0, resilience=dict(resilience))
    world.probing = False
    return world
