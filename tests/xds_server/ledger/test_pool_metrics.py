"""Metrics of a pool's decisions; unknown values are absent."""

from pathlib import Path

from engine.report import DrainRequest, EngineReport, Verdict
from policies.load import load
from policies.model import PolicySet
from tests.xds_server.ledger.conftest import POLICIES, decided, scene, seen, with_pool
from xds_server.admin.views.get_tables import pool_rows
from xds_server.admin.views.pool_metrics import pool_metrics
from xds_server.decide.decisions import DegradationState, Ejector, EngineDecision, Health
from xds_server.model.fleet import EngineId, Fleet, declared, with_pod_states, with_report
from xds_server.model.pod_state import PodPhase, PodState
from xds_server.model.pool_traffic import EngineTraffic


def values(policies: PolicySet, fleet: Fleet, decisions: object) -> dict[tuple[str, ...], float]:
    """Every sample by its name and label values, without the pool's."""
    found = {}
    for metric in pool_metrics(scene(policies, fleet, decisions)):  # type: ignore[arg-type]
        for sample in metric.samples:
            assert sample.labels.pop("pool") == "chat"
            found[sample.name, *sample.labels.values()] = sample.value
    return found


def test_degradation_metrics(policies: PolicySet, fleet: Fleet) -> None:
    ladder = DegradationState(level=2, reason="full", since_s=0.0, hedging_off=True, fallback_percent=35.0)
    found = values(policies, fleet, with_pool(decided(fleet), degradation=ladder))
    assert found["switchgear_pool_degradation_level",] == 2
    assert found["switchgear_pool_degradation_action", "no_hedging"] == 1
    assert found["switchgear_pool_degradation_action", "fallback"] == 1
    assert found["switchgear_pool_degradation_action", "no_batch"] == 0


def test_ejected_engines_by_ejector(policies: PolicySet, fleet: Fleet) -> None:
    out = EngineDecision(health=Health.UNHEALTHY, reason="", since_s=0.0, ejector=Ejector.ERRORS)
    kept = EngineDecision(health=Health.HEALTHY, reason="", since_s=0.0, ejector=Ejector.SLOWNESS, floor=True)
    found = values(policies, fleet, decided(fleet, r1=out, r2=out, r3=kept))
    assert found["switchgear_engines_out", "errors"] == 2
    assert found["switchgear_engines_out", "slowness"] == 0
    assert found["switchgear_pool_kept_in_engines",] == 1


def test_engines_by_verdict(policies: PolicySet, fleet: Fleet) -> None:
    unfit = PodState(standing=PodPhase.UNFIT, reason="its node is tainted")
    spoken = with_pod_states(fleet, {EngineId("chat", "r1"): unfit})
    found = values(policies, spoken, decided(spoken))
    assert found["switchgear_engine_standings", "unfit"] == 1
    assert found["switchgear_engine_standings", "present"] == 3
    assert found["switchgear_engine_standings", "gone"] == 0


def test_unknown_metrics_are_absent(policies: PolicySet, fleet: Fleet) -> None:
    names = {key[0] for key in values(policies, fleet, decided(fleet))}
    assert "switchgear_pool_degradation_level" in names
    assert not {"switchgear_pool_pressure_ratio", "switchgear_pool_in_flight_requests"} & names


def test_capacity_metric_counts_engines_in_rotation(policies: PolicySet, fleet: Fleet) -> None:
    out = EngineDecision(health=Health.DRAINING, reason="", since_s=0.0, ejector=Ejector.OPERATOR)
    found = values(policies, fleet, decided(fleet, r1=out))
    assert found["switchgear_pool_capacity_ratio",] == 0.75
    assert found["switchgear_pool_capacity_floor_ratio",] == 0.5


def test_metrics_per_engine(policies: PolicySet, fleet: Fleet) -> None:
    out = EngineDecision(health=Health.UNHEALTHY, reason="", since_s=0.0)
    trial = EngineDecision(health=Health.HEALTHY, reason="", since_s=0.0, traffic_percent=25.0)
    told = {"r2": EngineTraffic(window_calls=8, window_failures=2, in_flight=3), "r3": EngineTraffic()}
    full = seen(fleet, told)
    found = values(policies, full, decided(full, r1=out, r2=trial))
    admitted = {key[1]: value for key, value in found.items() if key[0] == "switchgear_engine_admitted_ratio"}
    assert admitted == {"r1": 0.0, "r2": 0.25, "r3": 1.0, "r4": 1.0}
    assert found["switchgear_engine_in_flight_requests", "r2", "a"] == 3
    failed = {key: value for key, value in found.items() if key[0] == "switchgear_engine_failed_ratio"}
    assert failed == {("switchgear_engine_failed_ratio", "r2", "a"): 0.25}, "without calls there is no ratio"


def test_time_left_of_a_drain_is_that_of_a_fresh_report(policies: PolicySet, fleet: Fleet) -> None:
    """The scene is at 100 s."""
    for name, left_s, at_s in (("r1", 60.0, 95.0), ("r2", 3.0, 95.0), ("r3", 60.0, 60.0), ("r4", None, 95.0)):
        report = EngineReport(
            pool="chat",
            engine=name,
            verdict=Verdict.DRAINING,
            evidence="",
            observed_at_s=at_s,
            drain=DrainRequest(deadline_in_s=left_s),
        )
        fleet = with_report(fleet, report, at_s)
    found = values(policies, fleet, decided(fleet))
    left = {key[1]: value for key, value in found.items() if key[0] == "switchgear_engine_drain_left_seconds"}
    assert left == {"r1": 55.0, "r2": 0.0}, "r3 fell silent, r4 has no deadline"


def test_prefill_engines_are_counted_by_state(tmp_path: Path) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text(POLICIES.replace("  model: m\n", "  model: m\n  stage: prefill\n"))
    staged = load((file,))
    fleet = declared(staged)
    out = EngineDecision(health=Health.UNHEALTHY, reason="", since_s=0.0, ejector=Ejector.ERRORS)
    kept = EngineDecision(health=Health.HEALTHY, reason="", since_s=0.0, ejector=Ejector.SLOWNESS, floor=True)
    found = values(staged, fleet, decided(fleet, r1=out, r3=kept))
    states = {name[1]: value for name, value in found.items() if name[0] == "switchgear_pool_prefill_engines"}
    assert states == {"named": 2, "ejected": 1, "floor": 1, "draining": 0, "full": 0, "unweighted": 0}
    assert pool_rows(scene(staged, fleet, decided(fleet)))[0].stage == "prefill"


def test_pool_without_stage_has_no_prefill_engines(policies: PolicySet, fleet: Fleet) -> None:
    found = values(policies, fleet, decided(fleet))
    assert not [name for name in found if name[0] == "switchgear_pool_prefill_engines"]
