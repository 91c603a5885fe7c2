"""The soak's plan and its judgements: from a seed, and with something to find."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.soak.aged_state import write_aged_state
from benchmarks.soak.cli import main, results_json
from benchmarks.soak.cpu_starvation import CpuWait, CpuWaitRecorder, starvation, starved_s
from benchmarks.soak.fault_plan import (
    BROKEN_PERCENT,
    CLOCK_JUMPS_S,
    ENGINE_FAULTS,
    KILLED_UNTIL,
    QUIET_S,
    SoakFault,
    fault_plan,
)
from benchmarks.soak.growth_rate import JUDGED_FROM_S, GrowthRate, GrowthVerdict, climbs, growth_rate, least
from benchmarks.soak.invariants import behind, incomplete, refused, unexplained
from benchmarks.soak.lost_requests import FaultInterval, SoakTimeline, attempts_of
from benchmarks.soak.process_usage import process_usage
from benchmarks.soak.soak_testbed import ControlPlanes
from chaos.history.request_outcomes import OutcomeReason, RequestOutcome
from xds_server.ledger.event_store import MOST_OF_ONE
from xds_server.ledger.ledger import Ledger
from xds_server.rollout.history.version_archive import FOLDER, MAX_VERSIONS, VersionArchive


def test_a_seed_makes_the_same_plan_again() -> None:
    first = fault_plan(7, 120.0, engines=30, agents=3, envoys=3, kills=2)
    assert first == fault_plan(7, 120.0, engines=30, agents=3, envoys=3, kills=2)
    assert first != fault_plan(8, 120.0, engines=30, agents=3, envoys=3, kills=2)
    assert {one.what for one in first} == set(SoakFault)


@pytest.mark.parametrize("seed", range(20))
def test_enough_engines_stay_healthy_and_all_recover(seed: int) -> None:
    found = fault_plan(seed, 300.0, engines=30, agents=3, envoys=3, kills=2)
    troubles = [one for one in found if one.what in ENGINE_FAULTS]
    assert troubles
    for one in troubles:
        out = {other.which for other in troubles if other.at_s <= one.at_s < other.at_s + other.lasts_s}
        assert len(out) <= 30 * BROKEN_PERCENT // 100
        assert one.at_s + one.lasts_s <= 300.0 - QUIET_S
    kills = [one.at_s for one in found if one.what is SoakFault.CONTROL_PLANE_KILLED]
    assert len(kills) == 2
    assert max(kills) <= 300.0 * KILLED_UNTIL, "the last one is to live long enough to be measured"
    limited = [one.at_s for one in found if one.what is SoakFault.ADDRESS_SPACE_LIMITED]
    assert limited
    assert max(limited) <= 300.0 * KILLED_UNTIL
    assert all(one.by_s in CLOCK_JUMPS_S for one in found if one.what is SoakFault.CLOCK_JUMPED)
    for what in (SoakFault.AGENT_KILLED, SoakFault.ENVOY_KILLED, SoakFault.ENVOY_HOT_RESTARTED):
        assert {one.which for one in found if one.what is what} <= {0, 1}, "the last one is measured"


def test_only_the_wall_clock_of_a_process_jumps_and_comes_back(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from benchmarks.soak.shifted_clock import follow, write_shift\n"
        "began, path = (time.time(), time.monotonic()), Path(sys.argv[1])\n"
        "write_shift(path, 0.0)\n"
        "follow(path)\n"
        "for by_s in (-86_400.0, 864_000.0, 0.0):\n"
        "    write_shift(path, by_s)\n"
        "    print(time.time() - began[0], time.time_ns() / 1e9 - began[0], time.monotonic() - began[1])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "clock")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    for line, by_s in zip(done.stdout.splitlines(), (-86_400.0, 864_000.0, 0.0), strict=True):
        wall_s, wall_of_ns_s, passed_s = map(float, line.split())
        assert wall_s == pytest.approx(passed_s + by_s, abs=1.0)
        assert wall_of_ns_s == pytest.approx(passed_s + by_s, abs=1.0)
        assert 0.0 <= passed_s < 60.0


# -- growth ------------------------------------------------------------------------------------------------

LEVEL = 100_000_000.0


def test_control_planes_change_to_the_other_version_and_back(tmp_path: Path) -> None:
    def starts(other: Path | None) -> list[list[str]]:
        """The Python of the first three starts of two control planes."""
        planes = ControlPlanes(count=2, other_python=other)
        return [list(islice(planes.pythons(number), 3)) for number in range(planes.count)]

    other = tmp_path / "python"
    this = sys.executable
    assert starts(other) == [[this, str(other), this], [str(other), this, str(other)]]
    assert starts(None) == [[this] * 3] * 2


def test_memory_growth_is_the_slope_after_warm_up() -> None:
    filling = [(float(s), LEVEL + (50_000 * s if s < 300 else 15_000_000)) for s in range(1_200)]
    found = growth_rate(filling)
    assert found is not None
    assert (found.percent_per_h, found.low, found.high, found.moved) == (0.0, 0.0, 0.0, 0.0)
    assert found.verdict is GrowthVerdict.BELOW
    leaking = growth_rate([(float(s), LEVEL + 1_000 * s) for s in range(3_600)])
    assert leaking is not None
    assert leaking.percent_per_h == pytest.approx(3.6, rel=0.05)
    assert leaking.moved == pytest.approx(1_000 * leaking.over_s, rel=0.02), "as seen, and not an hour of it"
    assert leaking.verdict is GrowthVerdict.GROWS


def test_bursts_and_collections_do_not_tilt_it() -> None:
    rng = random.Random(5)
    noisy = [
        (float(s), LEVEL + rng.gauss(0, 20_000) + (40_000_000 if rng.random() < 0.05 else 0)) for s in range(1_200)
    ]
    found = growth_rate(noisy)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low > -0.2
    assert found.high < 0.2
    assert found.verdict is GrowthVerdict.BELOW


def test_least_of_each_minute_is_what_floods_leave_behind() -> None:
    """Floods hide what grows below them; the lowest value of a minute shows it."""
    rng = random.Random(1)
    floods = [(float(s), LEVEL + (rng.uniform(0, LEVEL) if s % 60 else 0.0)) for s in range(3_600)]
    assert least(floods) == [(60.0 * minute, LEVEL) for minute in range(60)]
    hidden, shown = growth_rate(floods), growth_rate(least(floods))
    assert hidden is not None
    assert shown is not None
    assert hidden.verdict is not GrowthVerdict.BELOW
    assert shown.verdict is GrowthVerdict.BELOW
    leaking = growth_rate(least([(at_s, value + 1_000 * at_s) for at_s, value in floods]))
    assert leaking is not None
    assert leaking.verdict is GrowthVerdict.GROWS


def _two_hours(seed: int, percent_per_h: float, filling_bytes: float = 0.0) -> list[tuple[float, float]]:
    """Own memory with floods that decay, garbage that waits for a collection, and this growth.

    ``filling_bytes``: of stores with a limit, which are full after half an hour.
    """
    rng = random.Random(seed)
    samples: list[tuple[float, float]] = []
    flood = garbage = 0.0
    for s in range(7_200):
        flood = rng.uniform(0.1, 1.5) * LEVEL if rng.random() < 1 / 40 else 0.85 * flood
        garbage = garbage + rng.uniform(0.0, 0.0002) * LEVEL if rng.random() > 1 / 50 else 0.0
        held = LEVEL * (1 + percent_per_h / 100 * s / 3_600) + filling_bytes * min(1.0, s / 1_800)
        samples.append((float(s), held + flood + garbage + rng.gauss(0.0, 0.002) * LEVEL))
    return samples


@pytest.mark.parametrize("seed", range(3))
def test_two_hours_tell_a_small_leak_from_noise(seed: int) -> None:
    def found(percent_per_h: float, filling_bytes: float = 0.0) -> GrowthRate:
        growth = growth_rate(least(_two_hours(seed, percent_per_h, filling_bytes)))
        assert growth is not None
        return growth

    leak = found(1.5)
    assert leak.verdict is GrowthVerdict.GROWS, leak
    assert leak.percent_per_h == pytest.approx(1.5, abs=0.3)
    assert found(1.2).verdict is not GrowthVerdict.BELOW
    assert found(0.0).verdict is GrowthVerdict.BELOW
    assert found(0.0, 0.05 * LEVEL).verdict is GrowthVerdict.BELOW, "full before two thirds of the time"
    assert found(1.5, 0.05 * LEVEL).verdict is not GrowthVerdict.BELOW, "a leak that filling stores hide"


def test_no_growth_verdict_from_a_short_or_uncertain_window() -> None:
    short = growth_rate([(float(s), LEVEL + 1_000 * s) for s in range(60)])
    assert short is not None
    assert short.low is None
    assert short.verdict is GrowthVerdict.UNKNOWN
    # Growth is certain, but the run is too short to extrapolate it.
    rising = growth_rate([(float(s), LEVEL + 1_000 * s) for s in range(300)])
    assert rising is not None
    assert rising.over_s < JUDGED_FROM_S
    assert rising.low is not None
    assert rising.low > 1.0
    assert rising.verdict is GrowthVerdict.UNKNOWN
    wild = growth_rate([(float(s), LEVEL + 5_000_000 * random.Random(s).random()) for s in range(1_200)])
    assert wild is not None
    assert wild.verdict is GrowthVerdict.UNKNOWN
    assert growth_rate([]) is None


def test_report_names_the_window_length_needed_for_a_growth_verdict() -> None:
    wide = GrowthRate(over_s=600.0, level=1.0, moved=0.0, percent_per_h=0.0, low=-8.0, high=8.0)
    assert wide.verdict is GrowthVerdict.UNKNOWN
    assert wide.enough_s == pytest.approx(2_400.0), (
        "four times the time, and twice the root of it: an eighth of it"
    )
    assert GrowthRate(over_s=600.0, level=1.0, moved=0.0, percent_per_h=0.0, low=-0.5, high=0.5).enough_s is None
    assert GrowthRate(over_s=600.0, level=1.0, moved=0.0, percent_per_h=None, low=None, high=None).enough_s is None


def test_a_past_fills_the_ledger_and_the_history(tmp_path: Path) -> None:
    engines = [f"e{number}" for number in range(5)]
    write_aged_state(tmp_path / "ledger.jsonl", tmp_path / "state", "text", pool="chat", engines=engines)
    ledger = Ledger()
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert ledger.read(lines) == 0, "all of it is a ledger's"
    per_subject = Counter(event.subject for event in ledger.book.since(0))
    assert len(per_subject) == 2 + len(engines)
    assert set(per_subject.values()) == {MOST_OF_ONE}, "no event was merged with another"
    now = [{"engine": engine, "health": "HEALTHY"} for engine in engines]
    assert not list(incomplete(lines, now, kills=0)), "at the end all are healthy"
    kept = VersionArchive(tmp_path / "state" / FOLDER)
    kept.restore()
    assert len(kept.versions) == MAX_VERSIONS
    assert not kept.damaged


def test_leaking_counts_are_distinguished_from_fluctuating_ones() -> None:
    assert climbs([(float(s), 60.0 + s) for s in range(90)])
    assert not climbs([(float(s), 60.0 + s % 40) for s in range(90)])
    assert not climbs([(float(s), 60.0) for s in range(90)])
    assert not climbs([(float(s), 60.0 + 10 * s) for s in range(6)])


def test_usage_of_this_process_is_read() -> None:
    found = process_usage(os.getpid(), 3.0)
    assert found is not None
    assert found.at_s == 3.0
    assert 0 < found.dirty_bytes <= found.own_bytes <= found.resident_bytes
    assert found.descriptors > 2
    assert len(found.waited_s) == found.threads >= 1
    with open(os.devnull):  # noqa: PTH123 -- any descriptor
        more = process_usage(os.getpid(), 4.0)
    assert more is not None
    assert more.descriptors == found.descriptors + 1
    assert process_usage(2**22 + 1, 0.0) is None


# -- losses ------------------------------------------------------------------------------------------------


def _outcome(
    reason: OutcomeReason = OutcomeReason.TIMEOUT,
    at_s: float = 120.0,
    latency_s: float = 30.0,
    *,
    streaming: bool = False,
    status: int = 0,
) -> RequestOutcome:
    return RequestOutcome(
        request_id=f"r-{at_s}",
        target="soak-1",
        streaming=streaming,
        arrived_at_s=at_s,
        lag_s=0.001,
        status=status,
        reason=reason,
        first_token_s=None,
        latency_s=latency_s,
        tokens=0,
    )


def _around(*spells: FaultInterval, waits: tuple[CpuWait, ...] = ()) -> SoakTimeline:
    book = {
        "calls": [
            {
                "request_id": "r-120.0",
                "attempt": 1,
                "arrived_at_s": 120.5,
                "closed_at_s": 121.5,
                "outcome": "failed",
                "reason": "crash",
            }
        ]
    }
    attempts = {request_id: [one] for request_id, one in attempts_of("e0", book, 100.0)}
    return SoakTimeline(attempts=attempts, spells=spells, waits=waits, engines=("e0", "e1"), began_s=100.0)


HANG = FaultInterval(what=SoakFault.HANG, from_s=18.0, to_s=26.0, engine="e0")


def test_request_is_lost_if_another_engine_stayed_healthy() -> None:
    (lost,) = _around(HANG).losses([_outcome(), _outcome(OutcomeReason.OK)])
    assert lost.excuse == ""
    assert lost.at_s == 20.0
    assert [(one.engine, one.from_s, one.to_s, one.fate) for one in lost.attempts] == [
        ("e0", 20.5, 21.5, "failed crash")
    ]
    assert lost.meanwhile == ("hang e0 18.0..26.0 s",)
    assert "tried e0 (failed crash, 1.0 s)" in str(lost)


def test_lost_request_is_excused_without_a_healthy_engine_or_during_cpu_starvation() -> None:
    crash = FaultInterval(what=SoakFault.CRASH, from_s=49.0, to_s=55.0, engine="e1")
    (lost,) = _around(HANG, crash).losses([_outcome()])
    assert lost.excuse == "no engine was healthy all the time"
    waits = tuple(CpuWait(from_s=float(s), to_s=s + 1.0, waited_s=0.7, who="envoy-1") for s in range(20, 60))
    (lost,) = _around(HANG, waits=waits).losses([_outcome()])
    assert lost.excuse == "envoy-1 waited for a core for 21.0 of 30.0 s"
    (lost,) = _around(HANG, waits=waits[:10]).losses([_outcome()])
    assert lost.excuse == "", "for a third of the time only"
    (shed,) = _around(HANG, waits=waits).losses([_outcome(OutcomeReason.SHED, at_s=155.0, latency_s=0.01)])
    assert shed.excuse, "what kept others from running may be why it was refused"


def test_requests_of_a_killed_envoy_are_excused_and_others_are_not() -> None:
    def lost(spell: FaultInterval) -> str:
        (found,) = _around(spell).losses([_outcome(OutcomeReason.RESET, latency_s=5.0)])
        return found.excuse

    away = FaultInterval(what=SoakFault.ENVOY_KILLED, from_s=24.0, to_s=27.0, proxy="soak-1")
    assert lost(away) == "its Envoy was away: envoy_killed soak-1 24.0..27.0 s"
    assert lost(replace(away, proxy="soak-2")) == ""
    assert lost(replace(away, from_s=17.0, to_s=19.9)) == "", "it was back"
    assert lost(replace(away, from_s=25.1)) == "", "the answer had failed before"


def test_a_stream_that_had_begun_may_end_with_its_engine_and_with_nothing_else() -> None:
    cut = _outcome(OutcomeReason.TRUNCATED, latency_s=1.6, streaming=True, status=200)

    def excuse(spell: FaultInterval, one: RequestOutcome = cut) -> str:
        (found,) = _around(spell).losses([one])
        assert str(found).startswith("stream r-120.0" if one.streaming else "r-120.0")
        return found.excuse

    crash = FaultInterval(what=SoakFault.CRASH, from_s=21.0, to_s=30.0, engine="e0")
    assert excuse(crash) == "it had begun on an engine that ended it: crash e0 21.0..30.0 s"
    assert excuse(replace(crash, engine="e1")) == "", "it was on e0"
    assert excuse(replace(crash, what=SoakFault.SLOW)) == ""
    assert excuse(replace(crash, from_s=21.5)) == "", "it was cut before"
    assert excuse(FaultInterval(what=SoakFault.EDIT, from_s=21.0, to_s=21.0)) == ""
    assert excuse(crash, replace(cut, status=0)) == "", "it had not begun: another engine could have had it"
    assert excuse(crash, replace(cut, streaming=False)) == ""


def test_slowest_good_answers_are_reported() -> None:
    slow, quick = (
        _outcome(OutcomeReason.OK, at_s=130.0, latency_s=5.0),
        _outcome(OutcomeReason.OK, at_s=131.0, latency_s=0.1),
    )
    assert [one.lasted_s for one in _around(HANG).slowest([quick, slow, _outcome()], 1)] == [5.0]


def test_longest_cpu_starvation_survives_between_samples() -> None:
    waits = CpuWaitRecorder()
    waits.sample(0.0, {("a", 1): 5.0, ("b", 2): 0.0})
    waits.sample(1.0, {("a", 1): 5.2, ("b", 2): 0.9})
    # b is another process, and clocks are read one after the other.
    waits.sample(2.0, {("a", 1): 6.4, ("b", 3): 0.9})
    assert [(one.who, round(one.waited_s, 3)) for one in waits.waits] == [("b", 0.9), ("a", 1.0)]
    assert starved_s(waits.waits) == 2.0
    assert starvation(waits.waits, 0.0, 2.0).startswith("a waited for a core")
    assert starvation(waits.waits, 0.0, 10.0) == ""


def test_short_waits_of_many_threads_are_not_cpu_starvation() -> None:
    waits = CpuWaitRecorder()
    for second in range(11):
        waits.sample(float(second), {("envoy-0", thread): 0.2 * second for thread in range(8)})
    assert starved_s(waits.waits) == 0.0
    assert starvation(waits.waits, 0.0, 10.0) == ""


# -- invariants --------------------------------------------------------------------------------------------


def test_problems_are_found() -> None:
    engines = [
        {"engine": "e0", "health": "HEALTHY", "reason": ""},
        {"engine": "e1", "health": "UNHEALTHY", "reason": "hung"},
    ]
    assert list(unexplained(engines)) == []
    assert list(unexplained([{**engines[1], "reason": ""}])) == ["e1 is UNHEALTHY without a reason"]
    well = {"node": "gw", "types": [{"type": "CDS", "state": "SYNCED", "refused": []}]}
    late = {"node": "gw", "types": [{"type": "CDS", "state": "STALE", "refused": []}]}
    no = {"node": "gw", "types": [{"type": "CDS", "state": "NACK", "refused": [{"name": "chat", "reason": "no"}]}]}
    assert list(behind([well], 1)) == []
    assert list(behind([late], 2)) == ["1 of 2 proxies are connected", "gw: CDS is STALE"]
    assert list(refused([well, late])) == []
    assert list(refused([no])) == ["gw refused CDS chat: no"]
    told = [json.dumps({"kind": "health", "subject": {"engine": "e1"}, "after": "UNHEALTHY"})]
    assert list(incomplete(told, engines, 0)) == []
    assert list(incomplete([*told, '{"ki'], engines, 1)) == []
    assert len(list(incomplete([*told, '{"ki'], engines, 0))) == 1
    assert len(list(incomplete(told, [{**engines[1], "health": "HEALTHY"}], 0))) == 1


def test_results_have_a_line_for_each_item() -> None:
    found = {"seed": 8, "lost": [], "excused": [{"at_s": 1.0}, {"at_s": 2.0}], "troubles": {"edit": 1}}
    text = results_json(found)
    assert json.loads(text) == found
    assert len(text.splitlines()) == 9


def test_missing_python_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--other-python", "/nonexistent"])
    assert refused.value.code == 2
    assert "/nonexistent is not a program" in capsys.readouterr().err
