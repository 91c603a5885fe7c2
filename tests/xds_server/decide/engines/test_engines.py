"""Who is in and who is out: what each ejector does, what they do together, and what holds whatever happens."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import EngineReport, Source, Verdict
from policies.resilience import Straggler
from xds_server.decide.decisions import Ejector, EngineDecision, Health, TimeLimits
from xds_server.decide.engines.breaker import proofs_needed
from xds_server.decide.engines.comeback import UNCUT_S
from xds_server.decide.engines.lost import longest_try_s
from xds_server.decide.engines.slowness import Peers, slowness
from xds_server.decide.remembered import Book
from xds_server.fleet import with_report
from xds_server.overrides import Action, Override

from .world import World, key

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


# -- the breaker ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_half_a_pool_that_fails_is_out_soon_and_back_soon(seed: int) -> None:
    world = World(seed=seed).run(8)
    broken, began_s = [f"e{place}" for place in range(4)], world.now_s
    for engine in broken:
        world.engines[engine].fails = 1.0
    world.run(19)
    assert world.out() == set(broken)
    # The first failures end half a second after the fault began, with the calls that meet it.
    assert max(world.first_s(began_s, is_out(engine)) for engine in broken) < 1.2
    assert world.decision("e0").ejector in {Ejector.ERRORS, Ejector.VERDICT}
    healed_s = world.now_s
    for engine in broken:
        world.engines[engine].fails = 0.0
    world.run(8)
    assert max(world.first_s(healed_s, is_in(engine)) for engine in broken) < 0.7
    assert max(world.first_s(healed_s, is_back(engine)) for engine in broken) < 1.6
    assert world.out(healed_s + 2) == set()


@pytest.mark.parametrize("seed", range(4))
def test_an_engine_that_fails_most_calls_does_not_come_and_go(seed: int) -> None:
    world = World(seed=seed).run(4)
    world.engines["e0"].fails = 0.6
    began_s = world.now_s
    world.run(120)
    assert world.out() == {"e0"}
    inside = [one["e0"].health is IN for at_s, one in world.history if at_s > began_s + 20]
    assert sum(inside) < 0.1 * len(inside)
    assert sum(now and not before for before, now in pairwise(inside)) <= 5


def test_canaries_that_promise_too_much_count_less_each_time() -> None:
    assert [proofs_needed(opens) for opens in (1, 2, 3, 9, 99)] == [1, 2, 4, 64, 64]


def test_failures_from_before_it_left_do_not_throw_it_out_again() -> None:
    world = World().run(4)
    world.engines["e0"].fails = 1.0
    world.run(3)
    world.engines["e0"].fails = 0.0
    healed_s = world.now_s
    world.run(3)
    assert world.engines["e0"].ended.maxlen == 25
    assert is_back("e0")(world.history[-1][1])
    assert world.out(healed_s + 1) == set()


def test_without_telemetry_nobody_leaves_and_an_open_breaker_runs_out() -> None:
    world = World(resilience={"breaker": {"cooldown": "5s"}}).run(4)
    world.engines["e0"].fails = 1.0
    world.probing = False
    world.run(2)
    assert world.decision("e0").ejector is Ejector.ERRORS
    until_s = world.decision("e0").until_s
    assert until_s is not None
    world.told = False
    lost_s = world.now_s
    for engine in world.engines.values():
        engine.fails = 1.0
    world.run(30)
    assert world.out(lost_s) == {"e0"}
    assert world.out(until_s + 0.2) == set()
    assert world.letters() == "H" * 8


def test_failures_in_a_row_need_no_rate() -> None:
    world = World(resilience={"breaker": {"minCalls": 25, "windowCalls": 25}})
    world.probing = False
    world.engines["e0"].fails = 1.0
    world.run(1.2)
    assert "calls in a row failed" in world.decision("e0").reason


def test_traffic_that_was_last_heard_long_ago_ejects_nobody() -> None:
    world = World().run(2)
    world.engines["e0"].fails = 1.0
    world.probing = False
    world.run(0.3)
    told = world.traffic()
    world.traffic = lambda: replace(  # type: ignore[method-assign]
        told,
        engines={
            **told.engines,
            "e0": replace(told.engines["e0"], failures_in_a_row=9, failed=99, window_failures=9),
        },
    )
    world.now_s += 5.0
    world.decide()
    assert world.letters() == "H" * 8


def test_a_breaker_turned_off_ejects_nobody() -> None:
    world = World(resilience={"breaker": {"errorRatePercent": 0, "consecutiveErrors": 0}})
    world.probing = False
    world.engines["e0"].fails = 1.0
    assert world.run(5).out() == set()


# -- stragglers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_slow_engines_leave_before_their_first_slow_answer_and_return(seed: int) -> None:
    world = World(seed=seed).run(8)
    began_s = world.now_s
    for engine in ("e0", "e1"):
        world.engines[engine].slower = 10.0
    world.run(19)
    assert world.out() == {"e0", "e1"}
    for engine in ("e0", "e1"):
        assert world.first_s(began_s, is_out(engine)) < 2.0
        assert world.decision(engine).ejector is Ejector.SLOWNESS
        assert "slower is out" in world.decision(engine).reason
        world.engines[engine].slower = 1.0
    healed_s = world.now_s
    world.run(8)
    assert max(world.first_s(healed_s, is_back(engine)) for engine in ("e0", "e1")) < 1.5
    assert world.out(healed_s + 2) == set()


@pytest.mark.parametrize("seed", range(3))
def test_long_answers_by_chance_and_slowness_of_all_eject_nobody(seed: int) -> None:
    mixed = World(seed=seed, service=lambda rng: 4.0 if rng.random() < 0.1 else 0.2).run(40)
    assert mixed.out() == set()
    together = World(seed=seed).run(5)
    for engine in together.engines.values():
        engine.slower = 10.0
    assert together.run(10).out() == set()


def test_few_calls_prove_little() -> None:
    cohort = Peers(finished_per_work_s=2.0, service_s=None, tokens_per_s=None, canary_s=None, engines=8)

    def found(finished: int, work_s: float) -> bool:
        book = Book(at_s=1.0, began_s=0.0, done=0, finished=finished, work_s=work_s)
        return slowness(book, None, None, cohort, Straggler())[0] > 0

    assert not found(0, 3.0), "six would have been expected"
    assert not found(3, 5.0), "three of ten come about by chance"
    assert found(0, 20.0)


def test_too_few_peers_prove_nothing() -> None:
    world = World("aa").run(4)
    world.engines["e0"].slower = 10.0
    assert world.run(10).out() == set()


# -- cut, crash, flapping -------------------------------------------------------------------------------------


def test_a_hung_engine_is_cut_at_once_and_let_in_again_in_two_steps() -> None:
    world = World().run(4)
    world.engines["e0"].hung = True
    world.run(4)
    decision = world.decision("e0")
    assert (decision.health, decision.cut, decision.ejector) == (OUT, True, Ejector.VERDICT)
    assert world.engines["e0"].calls == []
    world.engines["e0"].hung = False
    healed_s = world.now_s
    world.run(3)
    opened_s = world.first_s(healed_s, lambda one: not one["e0"].cut)
    back_s = world.first_s(healed_s, is_back("e0"))
    assert UNCUT_S == 0.3
    assert UNCUT_S <= back_s - opened_s + 1e-6 < UNCUT_S + 0.2
    assert back_s < 1.0, "the calls that were cut are no evidence of the breaker's"


def test_a_policy_may_leave_hung_requests_alone() -> None:
    world = said(still("aa", breaker={"cutHung": False}), "e0", Verdict.HUNG)
    world.decide()
    assert world.decision("e0").health is OUT
    assert not world.decision("e0").cut


@pytest.mark.parametrize(
    ("trouble", "source", "resilience", "cut"),
    [
        ("unreached", Source.AGENT, {}, True),
        ("unreached", Source.PROBE, {}, True),
        ("unreached", Source.AGENT, {"breaker": {"cutHung": False}}, False),
        ("unreached", Source.AGENT, {"straggler": {"mode": "shadow"}}, False),
        ("stopped", Source.AGENT, {}, True),
        ("stopped", Source.PROBE, {}, False),  # it may be our way there that is broken
        ("slow", Source.AGENT, {}, False),
    ],
)
def test_what_an_engine_that_is_out_has_lost_is_cut_once_no_try_is_young(
    trouble: str, source: Source, resilience: dict[str, object], cut: bool
) -> None:
    world = World(resilience=resilience)
    world.source, world.limits = source, limits(per_try_s=4.0)
    world.run(4)
    began_s, engine = world.now_s, world.engines["e0"]
    engine.unreached, engine.stopped = trouble == "unreached", trouble == "stopped"
    engine.slower = 100.0 if trouble == "slow" else 1.0
    world.run(10)
    old = [call for call in engine.calls if call.began_s <= began_s + 2.0]
    assert (old == []) is cut
    if cut:
        assert world.first_s(began_s, lambda one: one["e0"].cut) >= 4.0
        engine.unreached = engine.stopped = False
        healed_s = world.now_s
        assert world.run(25).first_s(healed_s, is_back("e0")) < 25


def limits(per_try_s: float | None) -> TimeLimits:
    """So long a try may take, and ten seconds all of them."""
    return TimeLimits(
        first_token_s=None,
        between_tokens_s=None,
        stream_total_s=0.0,
        per_try_s=per_try_s,
        total_s=10.0,
        reason="",
        since_s=0.0,
    )


def test_where_no_try_is_limited_the_longest_service_declared_says_what_is_young() -> None:
    spec = World().spec.model_copy(update={"service_time": 2.0, "longest_service_time": None})
    declared = spec.model_copy(update={"longest_service_time": 5.0})
    assert longest_try_s(spec, limits(3.0), None) == 3.0
    assert [longest_try_s(one, limits(None), None) for one in (spec, declared)] == [8.0, 5.0]
    assert longest_try_s(spec, limits(0.1), None) == 2.0, "counts of different moments differ for so long"


def test_a_crash_is_forgotten_with_the_process() -> None:
    world = World().run(4)
    world.engines["e0"].dead = True
    world.run(3)
    assert world.decision("e0").gone
    world.engines["e0"].dead, world.engines["e0"].boot = False, "2"
    healed_s = world.now_s
    assert world.run(3).first_s(healed_s, is_back("e0")) < 0.5


def test_who_comes_and_goes_waits_longer_each_time() -> None:
    world = still("aaaa")
    waits = []
    for _ in range(7):
        said(world, "e0", Verdict.DEAD)
        world.run(0.2)
        said(world, "e0", Verdict.READY)
        well_s = world.now_s
        world.run(0.1)
        while world.decision("e0").health is not IN:
            assert "came back" in world.decision("e0").reason
            world.run(0.1)
        waits.append(round(world.now_s - well_s - 0.1))
    assert waits == [0, 0, 0, 1, 2, 4, 8]
    world.run(61)
    said(world, "e0", Verdict.DEAD).run(0.1)
    said(world, "e0", Verdict.READY).run(0.1)
    assert world.decision("e0").health is IN, "a good minute is forgiven"


# -- the governor ---------------------------------------------------------------------------------------------


def test_the_worst_leave_first_and_who_is_kept_says_so() -> None:
    world = still("aaaa")
    for engine in ("e0", "e1"):
        said(world, engine, Verdict.DEGRADED)
    world.decide()
    said(world, "e2", Verdict.DEGRADED).decide()
    assert world.letters() == "UUHH"
    kept = world.decision("e2")
    assert (kept.floor, kept.ejector, kept.health) == (True, Ejector.VERDICT, IN)
    assert "25 % of its slots, floor 50 %" in kept.reason
    assert kept.returns


def test_a_zone_that_fails_as_one_may_leave_down_to_the_floor_of_the_pool() -> None:
    world = still("aaabbb")
    for engine in ("e0", "e1", "e2"):
        said(world, engine, Verdict.DEGRADED)
    world.decide()
    assert world.letters() == "UUUHHH"
    assert "3 of 3 engines of zone a at once: zone event" in world.decision("e1").reason
    said(world, "e3", Verdict.DEGRADED).decide()
    assert world.letters() == "UUUHHH", "the floor of the pool holds"
    apart = still("aaabbb")
    for engine in ("e0", "e1", "e3", "e4"):
        said(apart, engine, Verdict.DEGRADED)
    apart.decide()
    assert apart.letters() == "UHHUHH", "two zones at once are no event of either"


def test_the_floor_in_engines_holds_beside_the_one_in_percent() -> None:
    world = still("aaa", breaker={"capacityFloorPercent": 0, "capacityFloorEngines": 2})
    for engine in ("e0", "e1", "e2"):
        said(world, engine, Verdict.DEGRADED)
    world.decide()
    assert world.letters() == "UHH"
    for engine in ("e0", "e1", "e2"):
        said(world, engine, Verdict.DEAD)
    world.decide()
    assert world.letters() == "UUU", "hard evidence knows no floor"


def test_who_was_kept_because_nobody_else_serves_has_no_trial_with_less() -> None:
    world = World("a", rate_per_engine=12.0).run(4)
    world.engines["e0"].fails = 0.5
    world.run(6)
    assert world.decision("e0").floor
    world.engines["e0"].fails = 0.0
    world.run(20)
    assert all(decided["e0"].traffic_percent == 100 for _, decided in world.history)
    assert not world.decision("e0").floor


# -- orders and shadow ----------------------------------------------------------------------------------------


def order(world: World, engine: str, action: Action, *, seconds: float = 60.0, force: bool = False) -> None:
    world.overrides = {
        **world.overrides,
        key(engine): Override(
            engine=key(engine),
            action=action,
            until_s=world.now_s + seconds,
            reason="a test",
            by="ada",
            force=force,
        ),
    }
    world.decide()


def test_orders_are_followed_until_they_end() -> None:
    world = still("aaaa")
    order(world, "e0", Action.EJECT, seconds=5)
    order(world, "e1", Action.DRAIN, seconds=5)
    assert world.letters() == "UDHH"
    assert "ordered by ada to eject: a test" in world.decision("e0").reason
    assert world.decision("e0").ejector is Ejector.OPERATOR
    world.run(5.1)
    assert world.letters() == "HHHH"


def test_an_order_crosses_the_floor_only_by_force() -> None:
    world = still("aa")
    order(world, "e0", Action.EJECT)
    order(world, "e1", Action.EJECT)
    assert world.letters() == "UH"
    assert world.decision("e1").floor
    order(world, "e1", Action.EJECT, force=True)
    assert world.letters() == "UU"


def test_restore_beats_soft_evidence_and_never_hard() -> None:
    world = still("aaaa")
    said(world, "e0", Verdict.DEGRADED)
    said(world, "e1", Verdict.DEAD)
    order(world, "e0", Action.RESTORE)
    order(world, "e1", Action.RESTORE)
    assert world.letters() == "HUHH"
    assert "against it: degraded" in world.decision("e0").reason
    world.run(61)
    said(world, "e0", Verdict.DEGRADED).decide()
    assert world.letters()[0] == "U"


def test_a_shadowed_policy_decides_and_does_nothing() -> None:
    world = World(resilience={"mode": "shadow"}).run(4)
    world.engines["e0"].fails = 1.0
    world.engines["e1"].hung = True
    world.engines["e2"].slower = 10.0
    world.run(3)
    assert world.out() == set()
    shadows = {engine: world.decision(engine).shadow for engine in ("e0", "e1", "e2", "e3")}
    assert [one is not None and one.health is OUT for one in shadows.values()] == [True, True, True, False]
    assert shadows["e1"] is not None
    assert shadows["e1"].cut
    assert not world.decision("e1").cut
    said(world, "e4", Verdict.DRAINING).decide()
    assert world.decision("e4").health is Health.DRAINING, "that is an order"


def test_a_shadowed_breaker_leaves_the_verdict_in_force() -> None:
    world = World(resilience={"breaker": {"mode": "shadow"}}).run(4)
    world.probing = False
    world.engines["e0"].fails = 1.0
    world.run(2)
    shadow = world.decision("e0").shadow
    assert world.decision("e0").health is IN
    assert shadow is not None
    assert (shadow.health, shadow.ejector) == (OUT, Ejector.ERRORS)
    said(world, "e1", Verdict.DEAD).decide()
    assert world.decision("e1").health is OUT


# -- whatever happens -----------------------------------------------------------------------------------------


def test_nothing_new_is_the_very_same() -> None:
    world = World().run(6)
    world.engines["e0"].fails = 1.0
    world.run(3)
    world.probing = False
    first = world.decide()
    again = world.decide()
    assert all(again.engines[one] is first.engines[one] for one in first.engines)
    assert again.breakers == first.breakers


TROUBLES = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.sampled_from(["fails", "slower", "hung", "dead", "well", "deaf"]),
        st.floats(0.1, 4.0),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(TROUBLES, st.sampled_from(["aaaaaaaa", "aaaabbbb", "aaabbbcc"]), st.integers(0, 99))
def test_what_holds_whatever_happens(troubles: list[tuple[int, str, float]], zones: str, seed: int) -> None:
    world = World(zones, seed=seed)
    for place, trouble, seconds in troubles:
        one = world.engines[f"e{place}"]
        one.fails, one.slower = (0.7 if trouble == "fails" else 0.0), (8.0 if trouble == "slower" else 1.0)
        one.hung, one.dead = trouble == "hung", trouble == "dead"
        world.told = trouble != "deaf"
        world.run(seconds)
        for at_s, decided in world.history[-round(seconds * 10) :]:
            _check(at_s, decided)
    for one in world.engines.values():
        one.fails, one.slower, one.hung, one.dead = 0.0, 1.0, False, False
    world.told = True
    world.run(45)
    assert world.letters() == "H" * 8, "everyone who is well is back"
    assert {one.traffic_percent for one in world.history[-1][1].values()} == {100.0}


def _check(at_s: float, decided: dict[str, EngineDecision]) -> None:
    softly = 0
    for one in decided.values():
        assert one.reason
        assert one.since_s <= at_s
        assert 0 < one.traffic_percent <= 100
        assert not one.cut or one.health is OUT
        assert one.until_s is None or one.until_s < math.inf
        if one.health is not IN:
            assert one.ejector is not None
            assert one.returns
            softly += one.ejector in {Ejector.ERRORS, Ejector.SLOWNESS}
    healthy = sum(one.health is IN for one in decided.values())
    assert not softly or healthy or all(one.verdict in {Verdict.DEAD, Verdict.HUNG} for one in decided.values())


def test_a_slow_engine_that_hangs_is_cut_all_the_same() -> None:
    world = World().run(4)
    world.engines["e0"].slower = 30.0
    world.run(3)
    assert world.decision("e0").ejector is Ejector.SLOWNESS
    assert not world.decision("e0").cut
    world.engines["e0"].hung = True
    world.run(0.5)
    assert world.decision("e0").cut
    assert world.decision("e0").ejector is Ejector.VERDICT
