"""A pool that becomes slower as a whole is noticed within two seconds, and nothing else is taken for it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model import PolicySet
from policies.resilience import ResilienceSpec
from tests.xds_server.decide.ejection.ejection_simulation import key, pool
from xds_server.decide.admission.pool_slowdown import next_work_snapshots, slowed_work
from xds_server.decide.decision_memory import EngineWork, WorkSnapshot
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.decide.recent_work import SPACING_S, recent_work
from xds_server.model.fleet import Engine, EngineId, declared
from xds_server.model.pool_traffic import EngineTraffic

SERVICE_S = 0.5
SLOTS = 8
IDS = [key(f"e{place}") for place in range(8)]
LEARNED: Mapping[EngineId, float] = dict.fromkeys(IDS, SERVICE_S)


def snapshots(
    in_use: Mapping[EngineId, list[int]], service_s: Mapping[EngineId, float], began: int = 8
) -> tuple[WorkSnapshot, ...]:
    """Snapshots of engines whose calls take this long each, after ``began`` steady steps."""
    found, ended = [], dict.fromkeys(in_use, 0.0)
    for step in range(len(next(iter(in_use.values())))):
        for one, counts in in_use.items():
            if step:
                takes_s = SERVICE_S if step <= began else service_s[one]
                ended[one] += counts[step - 1] * SPACING_S / takes_s
        found.append(
            WorkSnapshot(
                at_s=100.0 + step * SPACING_S,
                engines={
                    one: EngineWork(in_use=counts[step], ended=int(ended[one])) for one, counts in in_use.items()
                },
            )
        )
    return tuple(found)


def steady(steps: int, used: int = SLOTS) -> dict[EngineId, list[int]]:
    return {one: [used] * steps for one in IDS}


def test_pool_three_times_slower_is_noticed_within_two_seconds() -> None:
    slow = dict.fromkeys(IDS, 3 * SERVICE_S)
    first = next(steps for steps in range(1, 20) if slowed_work(snapshots(steady(9 + steps), slow)[-9:], LEARNED))
    assert first * SPACING_S <= 2.0
    recent = slowed_work(snapshots(steady(9 + 8), slow)[-9:], LEARNED)
    assert sum(one.work_s for one in recent.values()) / sum(one.ended for one in recent.values()) == pytest.approx(
        3 * SERVICE_S, rel=0.1
    )


@pytest.mark.parametrize("bad", [1, 4, 5])
def test_some_slow_engines_are_left_to_the_ejectors(bad: int) -> None:
    service_s = {one: SERVICE_S * (20 if place < bad else 1) for place, one in enumerate(IDS)}
    assert not slowed_work(snapshots(steady(17), service_s)[-9:], LEARNED)


def test_uncounted_calls_are_not_a_slowdown() -> None:
    """Telemetry may know what is in flight, and not what ended."""
    none = tuple(
        replace(one, engines={key: replace(work, ended=7) for key, work in one.engines.items()})
        for one in snapshots(steady(17), dict.fromkeys(IDS, SERVICE_S))
    )
    assert not slowed_work(none[-9:], LEARNED)


def test_burst_is_not_a_slowdown() -> None:
    """Slots fill at once, and their first calls end only after a service time."""
    for steps in range(1, 9):
        counts = [0] * 9 + [SLOTS] * steps
        made = tuple(
            WorkSnapshot(
                at_s=100.0 + step * SPACING_S,
                engines={
                    one: EngineWork(
                        in_use=counts[step], ended=SLOTS * max(0, int((step - 9) * SPACING_S / SERVICE_S))
                    )
                    for one in IDS
                },
            )
            for step in range(9 + steps)
        )
        assert not slowed_work(made[-9:], LEARNED), steps


@given(
    used=st.lists(st.lists(st.integers(0, SLOTS), min_size=9, max_size=9), min_size=2, max_size=8),
    faster=st.floats(0.1, 1.1),
)
def test_pool_at_its_learned_speed_or_faster_never_counts_as_slower(used: list[list[int]], faster: float) -> None:
    in_use = dict(zip(IDS, used, strict=False))
    service_s = dict.fromkeys(in_use, SERVICE_S * faster)
    assert not slowed_work(snapshots(in_use, service_s, began=0), LEARNED)


def test_snapshots_cover_engines_in_full_rotation() -> None:
    fleet = declared_pool()
    healthy = EngineDecision(health=Health.HEALTHY, reason="", since_s=0.0, verdict=None)
    out = EngineDecision(health=Health.UNHEALTHY, reason="", since_s=0.0, verdict=None)
    seen = {f"e{place}": EngineTraffic(in_flight=20, succeeded=5, failed=1, neutral=1) for place in range(2)}
    both = {key("e0"): healthy, key("e1"): healthy}
    first = next_work_snapshots((), fleet, seen, both, 10.0)
    assert first[0].engines == {one: EngineWork(in_use=8, ended=7) for one in both}
    assert next_work_snapshots(first, fleet, seen, both, 10.1) is first
    assert len(next_work_snapshots(first, fleet, seen, both, 10.3)) == 2
    left = next_work_snapshots(first, fleet, seen, {**both, key("e1"): out}, 10.3)
    assert [list(one.engines) for one in left] == [[key("e0"), key("e1")], [key("e0")]]
    assert next_work_snapshots(first, fleet, {}, both, 10.3) == ()


def test_recent_work_covers_engines_of_the_whole_window() -> None:
    """An ejection elsewhere must not hide what the others did."""
    made = snapshots(steady(9), dict.fromkeys(IDS, SERVICE_S))
    gap = (*made[:-3], replace(made[-3], engines={IDS[0]: made[-3].engines[IDS[0]]}), *made[-2:])
    assert list(recent_work(gap, LEARNED, 1.0)) == [IDS[0]]
    assert list(recent_work(gap, LEARNED, 0.25)) == IDS


def declared_pool() -> tuple[Engine, ...]:
    one = pool("aa")
    policies = PolicySet(pools={"pool": one}, routes={}, policies={}, effective={"pool": ResilienceSpec()})
    return declared(policies).pools["pool"]
