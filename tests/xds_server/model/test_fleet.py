"""Applying reports to the fleet."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engine.report import EngineReport, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from xds_server.model.fleet import EngineId, declared, redeclared, with_pod_states, with_report
from xds_server.model.pod_state import PodPhase, PodState


def policies(*names: str, first_port: int = 8000) -> PolicySet:
    pools = {
        pool: EnginePool.model_validate(
            {
                "metadata": {"name": pool},
                "spec": {
                    "model": "m",
                    "endpoints": [
                        {"name": name, "address": "10.0.0.1", "port": first_port + place}
                        for place, name in enumerate(names)
                    ],
                },
            }
        )
        for pool in ("p", "q")
    }
    return PolicySet(pools=pools, routes={}, policies={}, effective=dict.fromkeys(pools, ResilienceSpec()))


def report(
    engine: str = "a", verdict: Verdict = Verdict.READY, sequence: int = 0, at_s: float = 1.0
) -> EngineReport:
    return EngineReport(
        pool="p", engine=engine, verdict=verdict, evidence="seen", observed_at_s=at_s, sequence=sequence
    )


def test_report_changes_one_engine_only() -> None:
    before = declared(policies("a", "b"))
    after = with_report(before, report("b"), 5.0)
    assert after.pools["q"] is before.pools["q"]
    assert after.pools["p"][0] is before.pools["p"][0]
    changed = after.engine(EngineId("p", "b"))
    assert changed is not None
    assert (changed.report, changed.received_at_s) == (report("b"), 5.0)


def test_reports_of_unknown_engines_change_nothing() -> None:
    fleet = declared(policies("a"))
    assert with_report(fleet, report("z"), 1.0) is fleet
    assert with_report(fleet, replace(report(), pool="z"), 1.0) is fleet


def test_repeated_report_counts_once() -> None:
    fleet = with_report(declared(policies("a")), report(verdict=Verdict.DEAD, sequence=7, at_s=1.0), 1.0)
    assert with_report(fleet, report(verdict=Verdict.DEAD, sequence=7, at_s=1.0), 2.0) is fleet
    assert with_report(fleet, report(sequence=6, at_s=0.9), 2.0) is fleet
    again = with_report(fleet, report(sequence=1, at_s=9.0), 9.0).engine(EngineId("p", "a"))
    assert again is not None
    assert again.good_looks == 1


def test_edit_keeps_reports_of_unchanged_addresses() -> None:
    fleet = with_report(declared(policies("a", "b")), report(verdict=Verdict.HUNG), 1.0)
    kept = redeclared(policies("a"), fleet).engine(EngineId("p", "a"))
    assert kept is not None
    assert kept == fleet.engine(EngineId("p", "a"))
    moved = redeclared(policies("a", first_port=9000), fleet).engine(EngineId("p", "a"))
    assert moved is not None
    assert moved.report is None
    assert moved.bad_looks == 0


@given(st.lists(st.sampled_from(Verdict), max_size=30))
def test_consecutive_readings_are_counted(verdicts: list[Verdict]) -> None:
    fleet = declared(policies("a"))
    for at_s, verdict in enumerate(verdicts):
        fleet = with_report(fleet, report(verdict=verdict, sequence=at_s + 1, at_s=float(at_s)), float(at_s))
    engine = fleet.engine(EngineId("p", "a"))
    assert engine is not None
    good = bad = 0
    for verdict in reversed(verdicts):
        if not verdict.good:
            break
        good += 1
    for verdict in reversed(verdicts):
        if verdict.good or verdict is Verdict.DRAINING:
            break
        bad += 1
    assert (engine.good_looks, engine.bad_looks) == (good, bad)


LEAVING = PodState(standing=PodPhase.LEAVING, reason="its pod is being deleted")


def test_pod_states_apply_to_their_engine_until_withdrawn() -> None:
    before = declared(policies("a", "b"))
    after = with_pod_states(before, {EngineId("p", "b"): LEAVING, EngineId("p", "x"): LEAVING})
    assert after.pools["q"] is before.pools["q"]
    assert after.pools["p"][0] is before.pools["p"][0]
    assert after.pools["p"][1].pod_phase is PodPhase.LEAVING
    assert with_pod_states(after, {EngineId("p", "b"): replace(LEAVING)}) is after
    ended = with_pod_states(after, {}).engine(EngineId("p", "b"))
    assert ended is not None
    assert ended.pod_phase is PodPhase.PRESENT


def test_pod_state_survives_an_edit() -> None:
    fleet = with_pod_states(declared(policies("a")), {EngineId("p", "a"): LEAVING})
    same = redeclared(policies("a", "b"), fleet).engine(EngineId("p", "a"))
    moved = redeclared(policies("a", first_port=9000), fleet).engine(EngineId("p", "a"))
    assert same is not None
    assert same.pod_state == LEAVING
    assert moved is not None
    assert moved.pod_state is None
