"""Held keys: an engine that returned gets them early while the others have little room."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.decide.decision_memory import NO_SLOW_START, RampMemory, SlowStartMemory
from xds_server.decide.decisions import EngineCapacity, EngineDecision, Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.decide.routing.key_hold import FULL_RATIO, NO_HOLD, KeyHold, key_hold
from xds_server.model.fleet import Engine, EngineId

SLOTS = 10
ENGINE = Engine(
    id=EngineId("p", "e"),
    address="10.0.0.1",
    port=80,
    region="",
    zone="a",
    weight=1,
    slots=SLOTS,
    tensor_parallel_group=None,
    labels={},
)
HELD = SlowStartMemory(ramps={EngineId("p", "e0"): RampMemory(at_s=0.0, held_s=20.0)})


def pool(in_flight: dict[str, int], zones: str = "aaaa", *, out: str = "", floor: bool = False) -> PoolEngines:
    """Engines e0, e1, ... with ten slots each, in these zones."""
    engines = tuple(
        replace(ENGINE, id=EngineId("p", f"e{number}"), zone=zone) for number, zone in enumerate(zones)
    )
    return PoolEngines(
        engines=engines,
        decisions={
            one.id: EngineDecision(
                health=Health.UNHEALTHY if one.id.engine in out.split() else Health.HEALTHY,
                reason="",
                since_s=0.0,
                floor=floor,
            )
            for one in engines
        },
        capacities={one.id: EngineCapacity(slots=SLOTS, service_s=1.0, source="") for one in engines},
        in_flight=in_flight,
    )


def is_released(engines: PoolEngines, *, crowded: bool = False, before: SlowStartMemory = HELD) -> bool:
    return EngineId("p", "e0") in key_hold(30.0, engines, before, crowded=crowded).released


@pytest.mark.parametrize(
    ("engines", "crowded", "released"),
    [
        (pool({"e1": 7, "e2": 7, "e3": 7}), False, False),
        (pool({"e1": 8, "e2": 8, "e3": 8}), False, True),
        (pool({"e0": 10, "e1": 5, "e2": 5, "e3": 5}), False, False),
        (pool({"e1": SLOTS + 1}), False, True),
        (pool({"e0": SLOTS + 1}), False, False),
        (pool({}), True, True),
        (pool({}), False, False),
        (pool({"e1": 8}, "aabb"), False, True),
        (pool({"e2": 8}, "aabb"), False, False),
        (pool({"e2": 8}, "abbb"), False, False),
        (pool({"e1": 8, "e2": 8, "e3": 8}, "abbb"), False, True),
        (pool({}, out="e1 e2 e3"), False, True),
        (pool({}, floor=True), False, True),
    ],
    ids=[
        "room",
        "full",
        "own",
        "one waits",
        "own waits",
        "crowded",
        "idle",
        "zone full",
        "other zone",
        "alone",
        "alone, others full",
        "no other",
        "floor",
    ],
)
def test_engine_is_released_while_the_others_have_little_room(
    engines: PoolEngines, crowded: bool, released: bool
) -> None:
    assert is_released(engines, crowded=crowded) is released


def test_engine_that_returns_in_this_round_is_released_at_once() -> None:
    absent = SlowStartMemory(absent=frozenset({EngineId("p", "e0")}))
    assert is_released(pool({"e1": 9, "e2": 9, "e3": 9}), before=absent)


def test_nothing_is_held_without_the_setting() -> None:
    assert key_hold(0.0, pool({}), HELD, crowded=True) is NO_HOLD
    assert key_hold(30.0, pool({}), NO_SLOW_START, crowded=True) == KeyHold(after_s=30.0)


@given(
    in_flight=st.dictionaries(st.sampled_from(["e0", "e1", "e2", "e3", "gone"]), st.integers(0, 3 * SLOTS)),
    zones=st.text("ab", min_size=1, max_size=4),
    out=st.sets(st.sampled_from(["e0", "e1", "e2", "e3"])),
    absent=st.sets(st.sampled_from(["e0", "e1", "e2", "e3"])),
    crowded=st.booleans(),
)
def test_no_good_capacity_idles_while_the_others_are_full(
    in_flight: dict[str, int], zones: str, out: set[str], absent: set[str], crowded: bool
) -> None:
    engines = pool(in_flight, zones, out=" ".join(out))
    before = SlowStartMemory(absent=frozenset(EngineId("p", one) for one in absent))
    ready = {one.id.engine for one in engines.engines} - out
    held, others = ready & absent, ready - absent
    released = {one.engine for one in key_hold(30.0, engines, before, crowded=crowded).released}
    assert released <= held
    used = sum(in_flight.get(one, 0) for one in others)
    if (
        crowded
        or not others
        or used >= FULL_RATIO * SLOTS * len(others)
        or any(in_flight.get(one, 0) > SLOTS for one in others)
    ):
        assert released == held
    elif all(in_flight.get(one, 0) < FULL_RATIO * SLOTS for one in others):
        assert not released
