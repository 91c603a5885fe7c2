"""Signs of strain from reports, decisions and traffic."""

from dataclasses import replace

import pytest

from engine.report import EngineReport, GpuSummary, GpuVitals, Quantiles, ReportSource, Verdict
from policies.pool import Probe
from xds_server.decide.admission.pool_strain import PoolStrain, pool_strain
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import EngineTraffic, LatencyTail, PoolTraffic

NOW_S = 100.0


def engine(name: str, report: EngineReport | None = None, received_at_s: float = NOW_S) -> Engine:
    return Engine(
        id=EngineId("chat", name),
        address="127.0.0.1",
        port=1,
        zone="",
        region="",
        slots=8,
        weight=1,
        tensor_parallel_group="",
        labels={},
        report=report,
        received_at_s=None if report is None else received_at_s,
    )


def report(
    kv: float | None = None, *, throttled: bool | None = None, first_s: float | None = None
) -> EngineReport:
    gpu = None
    if throttled is not None:
        gpu = GpuSummary(gpus=(GpuVitals(rank=0, throttled=("heat",) if throttled else ()),))
    return EngineReport(
        pool="chat",
        engine="",
        verdict=Verdict.READY,
        evidence="",
        observed_at_s=NOW_S,
        source=ReportSource.AGENT,
        kv_cache_usage_ratio=kv,
        gpu=gpu,
        time_to_first_token=None if first_s is None else Quantiles(p50_s=first_s / 2, p99_s=first_s),
    )


def decision(health: Health = Health.HEALTHY, ejector: Ejector | None = None) -> EngineDecision:
    return replace(EngineDecision(health=health, reason="", since_s=0.0), ejector=ejector)


def strain(
    engines: list[Engine], decisions: list[EngineDecision], traffic: PoolTraffic | None = None
) -> PoolStrain:
    known = {one.id: decided for one, decided in zip(engines, decisions, strict=True)}
    return pool_strain(Probe(), engines, known, traffic, pressure=0.5, now_s=NOW_S)


def test_nothing_known_is_unknown() -> None:
    empty = strain([], [])
    assert empty == PoolStrain(pressure=0.5)
    assert strain([engine("a")], [decision()]) == replace(empty, ejected_percent=0.0)


def test_reports_of_engines_in_rotation_count_while_fresh() -> None:
    engines = [
        engine("a", report(0.8, throttled=True, first_s=1.0)),
        engine("b", report(0.6, throttled=False, first_s=3.0)),
        engine("c", report(1.0, throttled=True, first_s=9.0)),
        engine("d", report(1.0, throttled=True, first_s=9.0), received_at_s=NOW_S - 60),
    ]
    ejected = decision(Health.UNHEALTHY, Ejector.VERDICT)
    found = strain(engines, [decision(), decision(), ejected, decision()])
    assert found.kv_cache_percent == pytest.approx(70)
    assert found.throttled_percent == pytest.approx(50)
    assert found.first_token_s == pytest.approx(2.0)
    assert found.ejected_percent == pytest.approx(25)


def test_orders_and_drains_do_not_count_as_ejections() -> None:
    ordered = decision(Health.UNHEALTHY, Ejector.OPERATOR)
    found = strain([engine("a"), engine("b")], [ordered, decision(Health.DRAINING)])
    assert found.ejected_percent == 0


def test_traffic_counts_while_fresh_and_with_enough_calls() -> None:
    first = LatencyTail(p50_s=0.1, p95_s=0.2, p99_s=0.7, calls=50)
    traffic = PoolTraffic(
        engines={"a": EngineTraffic(window_calls=15, window_failures=3), "b": EngineTraffic(window_calls=5)},
        first_byte=first,
        heard_at_s=NOW_S,
    )
    engines = [engine("a", report(first_s=5.0))]
    found = strain(engines, [decision()], traffic)
    assert (found.failed_percent, found.first_token_s) == (pytest.approx(15), 0.7)
    few = replace(traffic, engines={"a": EngineTraffic(window_calls=19, window_failures=19)})
    assert strain(engines, [decision()], few).failed_percent is None
    old = strain(engines, [decision()], replace(traffic, heard_at_s=NOW_S - 6))
    assert (old.failed_percent, old.first_token_s) == (None, 5.0)
