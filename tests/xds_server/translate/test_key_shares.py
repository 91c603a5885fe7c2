"""Keys that other engines have, by the engine that should have them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.decide.decisions import EngineDecision, Health, PoolDecisions, ShareRamp
from xds_server.model.fleet import Engine, EngineId
from xds_server.translate.key_shares import keys_away


def engine(number: int, slots: int = 8) -> Engine:
    return Engine(
        id=EngineId("p", f"e{number}"),
        address="10.0.0.1",
        port=80,
        region="",
        zone="",
        weight=1,
        slots=slots,
        tensor_parallel_group=None,
        labels={},
    )


def decided(*parts: tuple[Health, float, float | None], paced: bool = False) -> PoolDecisions:
    """Health, percent of the traffic, and percent in slow start of e0, e1, ..."""
    ids = [EngineId("p", f"e{number}") for number in range(len(parts))]
    return PoolDecisions(
        engines={
            key: EngineDecision(health=health, reason="", since_s=0.0, traffic_percent=percent, paced=paced)
            for key, (health, percent, _) in zip(ids, parts, strict=True)
        },
        zones={},
        ceilings={},
        ramps={
            key: ShareRamp(percent=ramp, full_at_s=9.0)
            for key, (_, _, ramp) in zip(ids, parts, strict=True)
            if ramp is not None
        },
    )


WELL = (Health.HEALTHY, 100.0, None)


@pytest.mark.parametrize(
    ("first", "away"),
    [
        (WELL, {}),
        ((Health.UNHEALTHY, 100.0, None), {"e0": 50.0}),
        ((Health.DRAINING, 100.0, None), {"e0": 50.0}),
        ((Health.HEALTHY, 25.0, None), {"e0": 37.5}),
        ((Health.HEALTHY, 100.0, 5.0), {"e0": 47.5}),
        ((Health.HEALTHY, 25.0, 5.0), {"e0": 47.5}),
    ],
    ids=["healthy", "ejected", "draining", "on trial", "held", "held on trial"],
)
def test_keys_are_away_in_proportion_to_slots(
    first: tuple[Health, float, float | None], away: dict[str, float]
) -> None:
    engines = [engine(0, 16), engine(1), engine(2)]
    assert keys_away(engines, decided(first, WELL, WELL)) == pytest.approx(away)


def test_paced_engine_has_all_that_it_can_serve() -> None:
    assert keys_away([engine(0), engine(1)], decided((Health.HEALTHY, 40.0, None), WELL, paced=True)) == {}


@given(st.lists(st.tuples(st.sampled_from(Health), st.floats(1, 100), st.none() | st.floats(0, 100)), min_size=1))
def test_no_more_keys_are_away_than_there_are(parts: list[tuple[Health, float, float | None]]) -> None:
    engines = [engine(number, 1 + number % 3) for number in range(len(parts))]
    found = keys_away(engines, decided(*parts))
    assert all(value > 0 for value in found.values())
    assert sum(found.values()) <= 100 + 1e-6
