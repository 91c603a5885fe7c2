"""An agent's report counts at once, expires like any other, and applies to one engine process only."""

from dataclasses import replace

from engine.report import EngineReport, ReportSource, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool, Probe
from policies.resilience import ResilienceSpec
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.decide.ejection.report_evidence import EjectionRequest, report_request
from xds_server.model.fleet import Engine, EngineId, Fleet, declared, with_report

KEY = EngineId("p", "a")
OUT = EngineDecision(
    health=Health.UNHEALTHY, reason="a test", since_s=0.0, verdict=Verdict.HUNG, ejector=Ejector.VERDICT
)
# Several probes are needed, so that one probe never decides alone.
PROBE = Probe(unhealthy_after=5, healthy_after=5)


def fleet() -> Fleet:
    pool = EnginePool.model_validate(
        {
            "metadata": {"name": "p"},
            "spec": {"model": "m", "endpoints": [{"name": "a", "address": "10.0.0.1", "port": 1, "agentPort": 2}]},
        }
    )
    return declared(PolicySet(pools={"p": pool}, routes={}, policies={}, effective={"p": ResilienceSpec()}))


def report(
    verdict: Verdict, boot: str = "b1", source: ReportSource = ReportSource.AGENT, at_s: float = 0.0
) -> EngineReport:
    return EngineReport(
        pool="p",
        engine="a",
        verdict=verdict,
        evidence="a test",
        observed_at_s=at_s,
        boot_id=boot,
        source=source,
    )


def engine(*reports: EngineReport) -> Engine:
    known = fleet()
    for each in reports:
        known = with_report(known, each, each.observed_at_s)
    found = known.engine(KEY)
    assert found is not None
    return found


def wished(verdict: Verdict, previous: EngineDecision | None = None, now_s: float = 0.0) -> EjectionRequest:
    return report_request(engine(report(verdict)), PROBE, previous, now_s)


def test_one_agent_report_suffices_to_eject() -> None:
    assert wished(Verdict.HUNG).health is Health.UNHEALTHY
    assert wished(Verdict.READY, OUT).health is Health.HEALTHY
    probed = replace(engine(report(Verdict.HUNG, source=ReportSource.PROBE)), id=KEY)
    assert report_request(probed, PROBE, None, 0.0).health is Health.HEALTHY, "a probe result is confirmed first"


def test_stale_agent_report_is_neither_good_nor_bad() -> None:
    assert wished(Verdict.READY, now_s=4.9).reported
    assert not wished(Verdict.READY, now_s=5.1).reported
    stale = wished(Verdict.HUNG, OUT, now_s=5.1)
    assert stale.health is Health.UNHEALTHY, "an ejected engine stays ejected longer"
    assert wished(Verdict.HUNG, OUT, now_s=61.0).health is Health.HEALTHY


def test_readings_count_per_boot_id_and_source() -> None:
    hung, ready = report(Verdict.HUNG), report(Verdict.READY)
    assert engine(hung, replace(hung, observed_at_s=1.0)).bad_looks == 2
    assert engine(hung, report(Verdict.HUNG, boot="b2", at_s=1.0)).bad_looks == 1
    assert engine(ready, report(Verdict.READY, boot="", source=ReportSource.PROBE, at_s=1.0)).good_looks == 1


def test_unreported_engine_waits_for_its_agent() -> None:
    assert "no report yet" in report_request(engine(), Probe(enabled=False), None, 0.0).reason
