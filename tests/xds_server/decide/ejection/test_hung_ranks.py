"""An engine with hung data-parallel ranks: ejected, or kept for the others with a smaller share."""

from dataclasses import replace

import pytest

from engine.report import EngineReport, ReportSource, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from xds_server.decide.admission.engine_capacity import max_slots
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import EngineId, Fleet, declared, with_report
from xds_server.model.pod_state import PodPhase, PodState

KEY = EngineId("p", "e0")
PROXIES = ConnectedProxies(by_role={"gateway": 1}, calling_zones=frozenset())


def policies(hung_rank: str = "eject", engines: int = 4) -> PolicySet:
    endpoints = [{"name": f"e{one}", "address": "10.0.0.1", "port": 8000 + one} for one in range(engines)]
    probe = {"hungRank": hung_rank, "healthyAfter": 3}
    spec = {"model": "m", "endpoints": endpoints, "probe": probe, "slotsPerEngine": 8}
    pool = EnginePool.model_validate({"metadata": {"name": "p"}, "spec": spec})
    return PolicySet(pools={"p": pool}, routes={}, policies={}, effective={"p": ResilienceSpec()})


def report(verdict: Verdict, hung: int, ranks: int, source: ReportSource = ReportSource.AGENT) -> EngineReport:
    names = tuple(map(str, range(ranks)))
    return EngineReport(
        pool="p",
        engine="e0",
        verdict=verdict,
        evidence="data-parallel rank 0: no token",
        observed_at_s=0.0,
        source=source,
        ranks=names,
        hung_ranks=names[:hung],
    )


def heard(setup: PolicySet, *reports: EngineReport) -> Fleet:
    fleet = declared(setup)
    for one in reports:
        fleet = with_report(fleet, one, 0.0)
    return fleet


def decision(setup: PolicySet, fleet: Fleet) -> EngineDecision:
    decisions, _ = decide(setup, fleet, NO_MEMORY, proxies=PROXIES, now_s=0.1)
    return decisions.engines[KEY]


@pytest.mark.parametrize(("hung", "ranks", "cut"), [(1, 2, True), (1, 8, False), (4, 8, True), (2, 2, True)])
def test_engine_with_a_hung_rank_is_ejected_and_cut_if_most_ranks_hang(hung: int, ranks: int, cut: bool) -> None:
    setup = policies()
    found = decision(setup, heard(setup, report(Verdict.HUNG, hung, ranks)))
    assert (found.health, found.cut) == (Health.UNHEALTHY, cut)


@pytest.mark.parametrize(("hung", "ranks", "percent", "slots"), [(1, 2, 50, 4), (1, 8, 87.5, 7), (3, 4, 25, 2)])
def test_share_falls_by_the_share_of_hung_ranks(hung: int, ranks: int, percent: float, slots: int) -> None:
    setup = policies("reduceShare")
    fleet = heard(setup, report(Verdict.HUNG, hung, ranks))
    found = decision(setup, fleet)
    assert (found.health, found.traffic_percent, found.cut) == (Health.HEALTHY, percent, False)
    assert "data-parallel rank 0" in found.reason
    engine = fleet.engine(KEY)
    assert engine is not None
    assert max_slots(engine) == slots


def test_engine_whose_ranks_all_hang_is_ejected_whatever_the_policy() -> None:
    setup = policies("reduceShare")
    assert decision(setup, heard(setup, report(Verdict.HUNG, 2, 2))).health is Health.UNHEALTHY


def test_share_of_an_unready_pod_is_kept() -> None:
    setup = policies("reduceShare")
    fleet = heard(setup, report(Verdict.HUNG, 1, 2))
    engines = tuple(
        replace(one, pod_state=PodState(standing=PodPhase.NOT_READY, reason="not ready")) if one.id == KEY else one
        for one in fleet.pools["p"]
    )
    found = decision(setup, replace(fleet, pools={"p": engines}))
    assert (found.health, found.traffic_percent) == (Health.HEALTHY, 50)


@pytest.mark.parametrize("engines", [1, 2, 4])
def test_capacity_floor_gives_no_share_to_hung_ranks(engines: int) -> None:
    """Every engine has a hung rank, so the floor holds for none of them."""
    setup = policies("reduceShare", engines)
    ill = [replace(report(Verdict.HUNG, 1, 2), engine=f"e{one}") for one in range(engines)]
    decisions, _ = decide(setup, heard(setup, *ill), NO_MEMORY, proxies=PROXIES, now_s=0.1)
    for found in decisions.engines.values():
        assert (found.health, found.traffic_percent, found.floor) == (Health.HEALTHY, 50, False), found.reason


def test_probed_engine_gets_its_full_share_back_without_an_ejection() -> None:
    setup, probed = policies("reduceShare"), ReportSource.PROBE
    bad = [replace(report(Verdict.HUNG, 1, 2, probed), sequence=one) for one in (1, 2)]
    fleet = heard(setup, *bad)
    decisions, memory = decide(setup, fleet, NO_MEMORY, proxies=PROXIES, now_s=0.1)
    assert decisions.engines[KEY].traffic_percent == 50
    for sequence in (3, 4, 5):
        fleet = with_report(fleet, replace(report(Verdict.READY, 0, 2, probed), sequence=sequence), 0.2)
        decisions, memory = decide(setup, fleet, memory, proxies=PROXIES, now_s=0.3)
        assert decisions.engines[KEY].health is Health.HEALTHY
    assert decisions.engines[KEY].traffic_percent == 100
