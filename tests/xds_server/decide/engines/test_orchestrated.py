"""What follows from what an orchestrator says: ends are facts, the rest is evidence, and all at once is doubt."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import Verdict
from policies.resilience import ResilienceSpec
from xds_server.decide.changes import rules
from xds_server.decide.changes.change import ChangeKind, Subject
from xds_server.decide.changes.engine_changes import engine_changes
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.decide.remembered import Phase
from xds_server.fleet import with_words
from xds_server.fleet.orchestrator import OrchestratorWord, Standing
from xds_server.fleet.override import Action, Override

from .said import said, still
from .world import World, key

SOFT = (Standing.UNFIT, Standing.NOT_READY)
FINAL = (Standing.LEAVING, Standing.GONE)


def word(standing: Standing) -> OrchestratorWord:
    return OrchestratorWord(standing=standing, reason=f"a test says {standing}")


def told(world: World, **standings: Standing) -> World:
    """The pool a moment later, with these words and no others."""
    words = {key(engine): word(standing) for engine, standing in standings.items()}
    world.fleet = with_words(world.fleet, words)
    world.now_s += 0.1
    world.decide()
    return world


def ordered(engine: str, action: Action, *, force: bool = False) -> dict[object, Override]:
    order = Override(engine=key(engine), action=action, until_s=1e9, reason="a test", force=force)
    return {key(engine): order}


@pytest.mark.parametrize(
    ("standing", "letters"),
    [
        (Standing.PRESENT, "HHHH"),
        (Standing.NOT_READY, "HUHH"),
        (Standing.UNFIT, "HDHH"),
        (Standing.LEAVING, "HDHH"),
        (Standing.GONE, "HUHH"),
    ],
)
def test_each_word_has_its_consequence_and_none_outlives_it(standing: Standing, letters: str) -> None:
    world = told(still("aaaa"), e1=standing)
    assert world.letters() == letters
    decision = world.decision("e1")
    assert decision.standing is standing
    if standing is not Standing.PRESENT:
        assert decision.ejector is Ejector.ORCHESTRATOR
        assert f"a test says {standing}" in decision.reason
    assert decision.gone is (standing is Standing.GONE)
    assert told(world).letters() == "HHHH"


def test_the_floor_holds_against_what_is_soft_and_the_worse_leaves_first() -> None:
    world = told(still("aaaa"), e0=Standing.UNFIT, e1=Standing.UNFIT, e2=Standing.NOT_READY)
    assert world.letters() == "DHUH"
    assert world.decision("e1").floor
    assert "floor 50 %" in world.decision("e1").reason


@pytest.mark.parametrize("standing", FINAL)
def test_the_floor_keeps_nobody_in_that_ends(standing: Standing) -> None:
    world = told(still("aaa"), e0=standing, e1=standing, e2=standing)
    assert world.letters() == (3 * world.decision("e0").health.value[0])
    assert "H" not in world.letters()


@pytest.mark.parametrize("standing", SOFT)
def test_soft_words_only_stand_beside_the_decision_in_shadow_mode(standing: Standing) -> None:
    world = told(still("aaaa", mode="shadow"), e1=standing)
    assert world.letters() == "HHHH"
    shadow = world.decision("e1").shadow
    assert shadow is not None
    assert shadow.health is not Health.HEALTHY


@pytest.mark.parametrize("standing", FINAL)
def test_ends_hold_in_shadow_mode_and_against_an_order_to_restore(standing: Standing) -> None:
    world = still("aaaa", mode="shadow")
    world.overrides = ordered("e1", Action.RESTORE)
    assert told(world, e1=standing).decision("e1").health is not Health.HEALTHY


@pytest.mark.parametrize("standing", SOFT)
def test_an_order_to_restore_sets_soft_words_aside(standing: Standing) -> None:
    world = still("aaaa")
    world.overrides = ordered("e1", Action.RESTORE)
    assert told(world, e1=standing).letters() == "HHHH"


def test_an_order_that_the_floor_refuses_keeps_nobody_in_that_leaves() -> None:
    world = still("a")
    world.overrides = ordered("e0", Action.EJECT)
    assert told(world).letters() == "H"
    assert told(world, e0=Standing.LEAVING).letters() == "D"


def test_what_is_said_of_a_whole_pool_is_doubted_until_one_is_spared() -> None:
    world = still("aabb")
    everyone = dict.fromkeys(("e0", "e1", "e2", "e3"), Standing.NOT_READY)
    assert told(world, **everyone).letters() == "HHHH"
    assert "in doubt" in world.decision("e0").reason
    assert world.decision("e0").ejector is Ejector.ORCHESTRATOR
    assert told(world, **{**everyone, "e3": Standing.PRESENT}).letters().count("U") == 2


def test_who_ends_does_not_lessen_the_doubt_about_the_others() -> None:
    world = told(still("aaa"), e0=Standing.LEAVING, e1=Standing.NOT_READY, e2=Standing.NOT_READY)
    assert world.letters() == "DHH"
    assert "all 2 engines" in world.decision("e1").reason


def test_one_engine_alone_is_kept_by_the_floor_and_not_by_doubt() -> None:
    assert told(still("a"), e0=Standing.NOT_READY).decision("e0").floor
    open_to_all = {"capacityFloorPercent": 0, "capacityFloorEngines": 0}
    assert told(still("a", breaker=open_to_all), e0=Standing.NOT_READY).letters() == "U"


def test_an_engine_that_still_starts_stays_out_when_it_is_said_to_be_ready() -> None:
    world = told(said(still("aaaa"), "e1", Verdict.STARTING), e1=Standing.NOT_READY)
    assert world.decision("e1").ejector is Ejector.VERDICT
    assert told(world).letters() == "HUHH"
    assert told(said(world, "e1", Verdict.READY)).letters() == "HHHH"


def test_one_of_a_tensor_parallel_group_takes_the_group_along() -> None:
    world = still("aaaa")
    engines = tuple(
        replace(one, tensor_parallel_group="g" if one.id.engine in {"e0", "e1"} else "")
        for one in world.fleet.pools["pool"]
    )
    world.fleet = replace(world.fleet, pools={"pool": engines})
    assert told(world, e0=Standing.LEAVING).letters() == "DDHH"
    assert "shares GPUs with e0" in world.decision("e1").reason


@pytest.mark.parametrize("standing", [Standing.PRESENT, Standing.LEAVING])
def test_calls_that_fail_while_an_engine_ends_open_no_breaker(standing: Standing) -> None:
    world = World("aaaa").run(3)
    world.engines["e1"].fails = 1.0
    world.probing = False
    told(world, e1=standing)
    for call in world.engines["e1"].calls:
        call.fails = True
    world.run(3)
    assert (key("e1") in world.before.breakers and world.before.breakers[key("e1")].phase is not Phase.CLOSED) is (
        standing is Standing.PRESENT
    )


@given(
    standings=st.lists(st.sampled_from(Standing), min_size=1, max_size=8),
    dead=st.sets(st.integers(0, 7)),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_said_who_ends_is_out_and_words_alone_never_break_the_floor(
    standings: list[Standing], dead: set[int]
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


def decision(standing: Standing, **parts: object) -> EngineDecision:
    about = word(standing)
    return replace(
        EngineDecision(health=Health.HEALTHY, reason="r", since_s=0.0, orchestrator=about, verdict=Verdict.READY),
        **parts,
    )


def test_a_word_that_changes_nothing_is_still_an_event_with_its_reason() -> None:
    subject = Subject(pool="pool", engine="e1")
    before, after = decision(Standing.PRESENT), decision(Standing.NOT_READY)
    (change,) = engine_changes(subject, before, after)
    assert (change.kind, change.before, change.after) == (ChangeKind.STANDING, "present", "not-ready")
    assert change.reason == "a test says not-ready"
    (back,) = engine_changes(subject, after, replace(after, orchestrator=None))
    assert (back.after, back.reason) == ("present", "nothing is said against it any more")


def test_a_drain_by_word_is_one_event_and_no_field_rules_it() -> None:
    leaving = decision(Standing.LEAVING, health=Health.DRAINING, ejector=Ejector.ORCHESTRATOR)
    (change,) = engine_changes(Subject(pool="pool", engine="e1"), decision(Standing.PRESENT), leaving)
    assert (change.kind, change.after, change.rule) == (ChangeKind.HEALTH, "DRAINING", "")
    unfit = decision(Standing.UNFIT, health=Health.DRAINING, ejector=Ejector.ORCHESTRATOR)
    assert rules.rule_of_engine(unfit) == rules.FLOOR
    assert ResilienceSpec().breaker.capacity_floor_percent == 50
