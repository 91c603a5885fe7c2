"""Pod states: deletions are facts, the rest is evidence, and pool-wide evidence is doubted."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import Verdict
from policies.resilience import ResilienceSpec
from tests.xds_server.decide.ejection.ejection_simulation import World, key
from tests.xds_server.decide.ejection.engine_predicates import said, still
from xds_server.decide.decision_memory import BreakerPhase
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.decide.diff import policy_fields
from xds_server.decide.diff.change import ChangeKind, Subject
from xds_server.decide.diff.engine_diff import engine_changes
from xds_server.model.fleet import with_pod_states
from xds_server.model.order import Order, OrderAction
from xds_server.model.pod_state import PodPhase, PodState

SOFT = (PodPhase.UNFIT, PodPhase.NOT_READY)
FINAL = (PodPhase.LEAVING, PodPhase.GONE)


def word(standing: PodPhase) -> PodState:
    return PodState(standing=standing, reason=f"a test says {standing}")


def told(world: World, **standings: PodPhase) -> World:
    """The pool a moment later, with only these pod states."""
    words = {key(engine): word(standing) for engine, standing in standings.items()}
    world.fleet = with_pod_states(world.fleet, words)
    world.now_s += 0.1
    world.decide()
    return world


def ordered(engine: str, action: OrderAction, *, force: bool = False) -> dict[object, Order]:
    order = Order(engine=key(engine), action=action, until_s=1e9, reason="a test", force=force)
    return {key(engine): order}


@pytest.mark.parametrize(
    ("standing", "letters"),
    [
        (PodPhase.PRESENT, "HHHH"),
        (PodPhase.NOT_READY, "HUHH"),
        (PodPhase.UNFIT, "HDHH"),
        (PodPhase.LEAVING, "HDHH"),
        (PodPhase.GONE, "HUHH"),
    ],
)
def test_each_pod_state_has_its_consequence(standing: PodPhase, letters: str) -> None:
    world = told(still("aaaa"), e1=standing)
    assert world.letters() == letters
    decision = world.decision("e1")
    assert decision.pod_phase is standing
    if standing is not PodPhase.PRESENT:
        assert decision.ejector is Ejector.ORCHESTRATOR
        assert f"a test says {standing}" in decision.reason
    assert decision.gone is (standing is PodPhase.GONE)
    assert told(world).letters() == "HHHH"


def test_floor_limits_ejections_by_soft_pod_states() -> None:
    world = told(still("aaaa"), e0=PodPhase.UNFIT, e1=PodPhase.UNFIT, e2=PodPhase.NOT_READY)
    assert world.letters() == "DHUH"
    assert world.decision("e1").floor
    assert "floor: 50 %" in world.decision("e1").reason


@pytest.mark.parametrize("standing", FINAL)
def test_floor_keeps_no_terminating_pod(standing: PodPhase) -> None:
    world = told(still("aaa"), e0=standing, e1=standing, e2=standing)
    assert world.letters() == (3 * world.decision("e0").health.value[0])
    assert "H" not in world.letters()


@pytest.mark.parametrize("standing", SOFT)
def test_shadow_mode_only_reports_soft_pod_states(standing: PodPhase) -> None:
    world = told(still("aaaa", mode="shadow"), e1=standing)
    assert world.letters() == "HHHH"
    shadow = world.decision("e1").shadow
    assert shadow is not None
    assert shadow.health is not Health.HEALTHY


@pytest.mark.parametrize("standing", FINAL)
def test_terminating_pods_are_ejected_despite_shadow_mode_or_restore(standing: PodPhase) -> None:
    world = still("aaaa", mode="shadow")
    world.overrides = ordered("e1", OrderAction.RESTORE)
    assert told(world, e1=standing).decision("e1").health is not Health.HEALTHY


@pytest.mark.parametrize("standing", SOFT)
def test_restore_order_overrides_soft_pod_states(standing: PodPhase) -> None:
    world = still("aaaa")
    world.overrides = ordered("e1", OrderAction.RESTORE)
    assert told(world, e1=standing).letters() == "HHHH"


def test_eject_order_below_the_floor_keeps_no_terminating_pod() -> None:
    world = still("a")
    world.overrides = ordered("e0", OrderAction.EJECT)
    assert told(world).letters() == "H"
    assert told(world, e0=PodPhase.LEAVING).letters() == "D"


def test_pool_wide_pod_evidence_is_distrusted() -> None:
    world = still("aabb")
    everyone = dict.fromkeys(("e0", "e1", "e2", "e3"), PodPhase.NOT_READY)
    assert told(world, **everyone).letters() == "HHHH"
    assert "suspect the observer" in world.decision("e0").reason
    assert world.decision("e0").ejector is Ejector.ORCHESTRATOR
    assert told(world, **{**everyone, "e3": PodPhase.PRESENT}).letters().count("U") == 2


def test_terminating_pods_do_not_weaken_pool_wide_distrust() -> None:
    world = told(still("aaa"), e0=PodPhase.LEAVING, e1=PodPhase.NOT_READY, e2=PodPhase.NOT_READY)
    assert world.letters() == "DHH"
    assert "all 2 engines" in world.decision("e1").reason


def test_single_engine_is_kept_by_the_floor_not_by_distrust() -> None:
    assert told(still("a"), e0=PodPhase.NOT_READY).decision("e0").floor
    open_to_all = {"capacityFloorPercent": 0, "capacityFloorEngines": 0}
    assert told(still("a", breaker=open_to_all), e0=PodPhase.NOT_READY).letters() == "U"


def test_starting_engine_stays_ejected_despite_pod_readiness() -> None:
    world = told(said(still("aaaa"), "e1", Verdict.STARTING), e1=PodPhase.NOT_READY)
    assert world.decision("e1").ejector is Ejector.VERDICT
    assert told(world).letters() == "HUHH"
    assert told(said(world, "e1", Verdict.READY)).letters() == "HHHH"


def test_tensor_parallel_member_ejects_its_group() -> None:
    world = still("aaaa")
    engines = tuple(
        replace(one, tensor_parallel_group="g" if one.id.engine in {"e0", "e1"} else "")
        for one in world.fleet.pools["pool"]
    )
    world.fleet = replace(world.fleet, pools={"pool": engines})
    assert told(world, e0=PodPhase.LEAVING).letters() == "DDHH"
    assert "shares GPUs with e0" in world.decision("e1").reason


@pytest.mark.parametrize("standing", [PodPhase.PRESENT, PodPhase.LEAVING])
def test_failures_of_a_terminating_pod_open_no_circuit_breaker(standing: PodPhase) -> None:
    world = World("aaaa").run(3)
    world.engines["e1"].fails = 1.0
    world.probing = False
    told(world, e1=standing)
    for call in world.engines["e1"].calls:
        call.fails = True
    world.run(3)
    breaker = world.before.ejection.breakers.get(key("e1"))
    opened = breaker is not None and breaker.phase is not BreakerPhase.CLOSED
    assert opened is (standing is PodPhase.PRESENT)


@given(
    standings=st.lists(st.sampled_from(PodPhase), min_size=1, max_size=8),
    dead=st.sets(st.integers(0, 7)),
)
@settings(max_examples=60, deadline=None)
def test_terminating_pods_are_ejected_and_soft_pod_states_respect_the_floor(
    standings: list[PodPhase], dead: set[int]
) -> None:
    world = still("a" * len(standings))
    for place in sorted(dead):
        if place < len(standings):
            said(world, f"e{place}", Verdict.DEAD)
    told(world, **{f"e{place}": standing for place, standing in enumerate(standings)})
    hard = {place for place, one in enumerate(standings) if one.final} | {p for p in dead if p < len(standings)}
    out = {place for place, letter in enumerate(world.letters()) if letter != "H"}
    assert hard <= out
    if out != hard:
        assert len(standings) - len(out) >= max(1, 0.5 * len(standings))


def decision(standing: PodPhase, **parts: object) -> EngineDecision:
    about = word(standing)
    return replace(
        EngineDecision(health=Health.HEALTHY, reason="r", since_s=0.0, pod_state=about, verdict=Verdict.READY),
        **parts,
    )


def test_pod_state_without_effect_is_still_an_event() -> None:
    subject = Subject(pool="pool", engine="e1")
    before, after = decision(PodPhase.PRESENT), decision(PodPhase.NOT_READY)
    (change,) = engine_changes(subject, before, after)
    assert (change.kind, change.before, change.after) == (ChangeKind.STANDING, "present", "not-ready")
    assert change.reason == "a test says not-ready"
    (back,) = engine_changes(subject, after, replace(after, pod_state=None))
    assert (back.after, back.reason) == ("present", "the orchestrator reports no problem")


def test_drain_by_pod_state_is_one_event() -> None:
    leaving = decision(PodPhase.LEAVING, health=Health.DRAINING, ejector=Ejector.ORCHESTRATOR)
    (change,) = engine_changes(Subject(pool="pool", engine="e1"), decision(PodPhase.PRESENT), leaving)
    assert (change.kind, change.after, change.rule) == (ChangeKind.HEALTH, "DRAINING", "")
    unfit = decision(PodPhase.UNFIT, health=Health.DRAINING, ejector=Ejector.ORCHESTRATOR)
    assert policy_fields.engine_rule(unfit) == policy_fields.FLOOR
    assert ResilienceSpec().breaker.capacity_floor_percent == 50
