"""Several engines that stop in the same moment hang; one that stops may read a long prompt."""

import pytest

from engine.report import PREFILL_READING, STANDSTILL_READING, EngineReport, Evidence, ReportSource, Verdict
from tests.xds_server.decide.ejection.ejection_simulation import World
from tests.xds_server.decide.ejection.engine_predicates import still
from xds_server.decide.decisions import Health
from xds_server.decide.ejection.moved_requests import RETRY_WINDOW_S
from xds_server.model.fleet import with_report


def reported(
    world: World, engine: str, stalled_s: float, *, reading: str = STANDSTILL_READING, in_flight: int = 5
) -> None:
    """One report of an agent; ``stalled_s`` 0 is one of an engine that works."""
    evidence = (Evidence(reading=reading, sentence="no token", age_s=stalled_s),)
    good = not stalled_s or reading == STANDSTILL_READING
    report = EngineReport(
        pool="pool",
        engine=engine,
        verdict=Verdict.BUSY if good else Verdict.HUNG,
        evidence="no token",
        observed_at_s=world.now_s,
        sequence=world.sequence(),
        reasons=evidence if stalled_s else (),
        requests_in_flight=in_flight,
        source=ReportSource.AGENT,
    )
    world.fleet = with_report(world.fleet, report, world.now_s)
    world.decide()


def out(world: World) -> set[str]:
    return {name for name in world.engines if world.decision(name).health is not Health.HEALTHY}


def test_engines_that_stop_together_are_hung() -> None:
    world = still("aaaaaaaa")
    reported(world, "e0", 1.0)
    reported(world, "e3", 1.3)
    assert out(world) == set()
    reported(world, "e5", 1.1)
    assert out(world) == {"e0", "e3", "e5"}
    decision = world.decision("e0")
    assert (decision.verdict, decision.cut) == (Verdict.HUNG, True)
    assert "3 engines stand still since the same moment" in decision.reason


def test_one_that_counts_as_hung_is_evidence_too() -> None:
    world = still("aaaaaaaa")
    reported(world, "e0", 1.1, reading="tokens")
    reported(world, "e1", 1.0)
    reported(world, "e2", 1.2)
    assert out(world) == {"e0", "e1", "e2"}


@pytest.mark.parametrize(
    ("engines", "stalls_s"),
    [
        (8, (1.0, 1.0)),  # too few
        (16, (1.0, 1.0, 1.0)),  # less than a quarter
        (8, (1.0, 2.1, 3.2)),  # one after another
    ],
)
def test_standstills_without_a_common_cause_keep_their_time(engines: int, stalls_s: tuple[float, ...]) -> None:
    world = still("a" * engines)
    for place, stalled_s in enumerate(stalls_s):
        reported(world, f"e{place}", stalled_s)
    assert out(world) == set()


def test_idle_engines_do_not_stand_still() -> None:
    world = still("aaaaaaaa")
    for name in ("e0", "e1", "e2"):
        reported(world, name, 1.0, in_flight=0)
    assert out(world) == set()


def test_engine_returns_with_its_first_step() -> None:
    world = still("aaaaaaaa")
    for name in ("e0", "e1", "e2", "e3"):
        reported(world, name, 1.0)
    for name, rest in (("e1", {"e0", "e2", "e3"}), ("e2", set())):  # two may both read long prompts
        reported(world, name, 0.0)
        assert out(world.run(1.0)) == rest


def test_they_stay_out_once_they_count_as_hung_alone() -> None:
    world = still("aaaaaaaa")
    for name in ("e0", "e1", "e2"):
        reported(world, name, 1.0)
    world.run(2.0)
    for name, stalled_s in (("e0", 3.0), ("e1", 3.6), ("e2", 3.9)):
        reported(world, name, stalled_s, reading=PREFILL_READING)
        assert out(world) == {"e0", "e1", "e2"}


def test_requests_that_they_held_stop_no_others() -> None:
    world = still("aaaaaaaa")
    for name in ("e0", "e1", "e2"):
        reported(world, name, 1.0)
    world.run(1.5)
    for name in ("e3", "e4", "e5"):
        reported(world, name, 1.1)
    assert out(world) == {"e0", "e1", "e2"}
    for name in ("e0", "e1", "e2", "e3", "e4", "e5"):
        reported(world, name, 0.0)
    world.run(RETRY_WINDOW_S + 1)
    for name in ("e3", "e4", "e5"):
        reported(world, name, 1.0)
    assert out(world) == {"e3", "e4", "e5"}


def test_prompts_that_moved_from_a_hung_engine_stop_no_others() -> None:
    world = still("aaaaaaaa")
    reported(world, "e0", 3.0, reading=PREFILL_READING)
    world.run(1.5)
    for name in ("e1", "e2", "e3"):
        reported(world, name, 1.1)
    assert out(world) == {"e0"}
