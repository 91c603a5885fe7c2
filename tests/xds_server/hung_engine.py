"""A fleet of one engine that an agent has just reported as hung."""

from typing import Final

from engine.report import EngineReport, Evidence, ReportSource, Verdict
from xds_server.model.fleet import Engine, EngineId, Fleet, fleet_of

KEY: Final = EngineId("chat", "e1")


def fleet(received_at_s: float) -> Fleet:
    """The fleet, with the report as of then; its evidence was two seconds old."""
    report = EngineReport(
        pool=KEY.pool,
        engine=KEY.engine,
        verdict=Verdict.HUNG,
        evidence="no token",
        observed_at_s=0.0,
        source=ReportSource.AGENT,
        reasons=(Evidence(reading="tokens", sentence="no token", age_s=2.0),),
    )
    engine = Engine(
        id=KEY, address="127.0.0.1", port=1, zone="a", region="", slots=1, weight=1, tensor_parallel_group="",
        labels={}, report=report, received_at_s=received_at_s,
    )  # fmt: skip
    return fleet_of({KEY.pool: (engine,)})
