"""The soak's plan and its judgements: from a seed, and with something to find."""

import json

import pytest

from benchmarks.soak.growth import JUDGED_FROM_S, Sample, growth
from benchmarks.soak.invariants import behind, incomplete, unexplained
from benchmarks.soak.plan import BROKEN_PERCENT, ENGINE_FAULTS, QUIET_S, What, plan


def test_a_seed_makes_the_same_plan_again() -> None:
    first = plan(7, 120.0, engines=30, agents=3, kills=2)
    assert first == plan(7, 120.0, engines=30, agents=3, kills=2)
    assert first != plan(8, 120.0, engines=30, agents=3, kills=2)
    assert {one.what for one in first} == set(What)


@pytest.mark.parametrize("seed", range(20))
def test_enough_engines_stay_well_all_the_while_and_are_well_in_the_end(seed: int) -> None:
    troubles = [one for one in plan(seed, 300.0, engines=30, agents=3, kills=2) if one.what in ENGINE_FAULTS]
    assert troubles
    for one in troubles:
        out = {other.engine for other in troubles if other.at_s <= one.at_s < other.at_s + other.lasts_s}
        assert len(out) <= 30 * BROKEN_PERCENT // 100
        assert one.at_s + one.lasts_s <= 300.0 - QUIET_S


def test_growth_is_the_slope_after_warm_up() -> None:
    level = 100_000_000
    samples = [
        Sample(
            at_s=float(at_s), memory_bytes=level + (50_000 * at_s if at_s < 300 else 15_000_000), descriptors=40
        )
        for at_s in range(1_200)
    ]
    found = growth(samples)
    assert found is not None
    assert found.judged is (found.over_s >= JUDGED_FROM_S)
    assert found.memory_percent_per_h == pytest.approx(0.0, abs=1e-6)
    leaking = [
        Sample(at_s=float(s), memory_bytes=level + 1_000 * s, descriptors=40 + s // 60) for s in range(1_200)
    ]
    found = growth(leaking)
    assert found is not None
    assert found.memory_percent_per_h == pytest.approx(3.6, rel=0.02)
    assert found.descriptors_per_h == pytest.approx(60, rel=0.05)
    assert growth(samples[:3]) is None


def test_what_is_wrong_is_found() -> None:
    engines = [
        {"engine": "e0", "health": "HEALTHY", "reason": ""},
        {"engine": "e1", "health": "UNHEALTHY", "reason": "hung"},
    ]
    assert list(unexplained(engines)) == []
    assert list(unexplained([{**engines[1], "reason": ""}])) == ["e1 is UNHEALTHY without a reason"]
    well = {"node": "gw", "types": [{"type": "CDS", "state": "SYNCED"}]}
    late = {"node": "gw", "types": [{"type": "CDS", "state": "STALE"}]}
    assert list(behind([well], 1)) == []
    assert list(behind([late], 2)) == ["1 of 2 proxies are connected", "gw: CDS is STALE"]
    told = [json.dumps({"kind": "health", "subject": {"engine": "e1"}, "after": "UNHEALTHY"})]
    assert list(incomplete(told, engines, 0)) == []
    assert list(incomplete([*told, '{"ki'], engines, 1)) == []
    assert len(list(incomplete([*told, '{"ki'], engines, 0))) == 1
    assert len(list(incomplete(told, [{**engines[1], "health": "HEALTHY"}], 0))) == 1
