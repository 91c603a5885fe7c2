"""One request ejects at most one engine: a stall that a moved request may explain is watched."""

import pytest

from engine.report import PREFILL_READING, EngineReport, Evidence, Verdict
from tests.xds_server.decide.ejection.ejection_simulation import World
from tests.xds_server.decide.ejection.engine_predicates import still
from xds_server.decide.decisions import Health
from xds_server.decide.ejection.moved_requests import LONGEST_WATCH_S, RETRY_WINDOW_S
from xds_server.model.fleet import with_report


def reported(
    world: World, engine: str, verdict: Verdict, *, reading: str = PREFILL_READING, stalled_s: float
) -> None:
    """Two probes with this result, so that a prober's word counts."""
    for _ in range(2):
        report = EngineReport(
            pool="pool",
            engine=engine,
            verdict=verdict,
            evidence="test",
            observed_at_s=world.now_s,
            sequence=world.sequence(),
            reasons=(Evidence(reading=reading, sentence="test", age_s=stalled_s),),
        )
        world.fleet = with_report(world.fleet, report, world.now_s)
    world.decide()


def after_a_cut() -> World:
    """Four engines, 0.5 s after the requests of e0 were cut as hung."""
    world = still("aaaa")
    reported(world, "e0", Verdict.HUNG, stalled_s=3.0)
    assert world.decision("e0").cut
    return world.run(0.5)


def test_moved_request_ejects_no_second_engine() -> None:
    world = after_a_cut()
    for engine in ("e1", "e2", "e3"):
        reported(world, engine, Verdict.HUNG, stalled_s=0.4)
        decision = world.decision(engine)
        assert (decision.health, decision.cut) == (Health.HEALTHY, False)
        assert decision.verdict is Verdict.HUNG
        assert "may hold a request that moved from e0" in decision.reason


def test_moved_request_explains_a_stall_for_as_long_as_a_step_may_take() -> None:
    world = after_a_cut()
    stalled_at_s = world.now_s - 0.4
    while world.decision("e1").health is Health.HEALTHY:
        reported(world.run(0.1), "e1", Verdict.HUNG, stalled_s=world.now_s - stalled_at_s)
    assert world.decision("e1").cut
    assert world.now_s - stalled_at_s == pytest.approx(LONGEST_WATCH_S, abs=0.2)


@pytest.mark.parametrize(
    ("reading", "stalled_s"),
    [
        ("tokens", 0.4),  # decodes
        ("probe", 0.4),  # idle, and its canary got no token
        (PREFILL_READING, 3.4),  # stalled with the first, before any retry
    ],
)
def test_other_stalls_after_a_cut_eject(reading: str, stalled_s: float) -> None:
    world = after_a_cut()
    reported(world, "e1", Verdict.HUNG, reading=reading, stalled_s=stalled_s)
    assert world.decision("e1").health is Health.UNHEALTHY


def test_engine_that_hangs_again_is_ejected_again() -> None:
    world = after_a_cut()
    reported(world, "e0", Verdict.READY, stalled_s=0.0)
    world.run(1.0)
    assert world.decision("e0").health is Health.HEALTHY
    reported(world, "e0", Verdict.HUNG, stalled_s=0.4)
    assert world.decision("e0").health is Health.UNHEALTHY


def test_first_stall_explains_none_long_after_it() -> None:
    world = after_a_cut()
    world.run(RETRY_WINDOW_S + 0.5)
    reported(world, "e1", Verdict.HUNG, stalled_s=0.4)
    assert world.decision("e1").health is Health.UNHEALTHY
