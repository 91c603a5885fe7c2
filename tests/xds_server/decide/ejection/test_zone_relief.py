"""A zone's floor yields while the engines of other zones can serve its callers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.decide.decisions import Ejector, Health
from xds_server.decide.ejection.arbitration import FILL, CapacityFloor, ZoneRelief, granted_requests
from xds_server.decide.ejection.report_evidence import EjectionRequest
from xds_server.model.fleet import Engine, EngineId

PER_S = 4.0


def engines(zones: str) -> list[Engine]:
    return [
        Engine(
            id=EngineId("pool", f"e{place}"), address="10.0.0.1", port=8000, zone=zone, region="", slots=8,
            weight=1, tensor_parallel_group="", labels={},
        )
        for place, zone in enumerate(zones)
    ]  # fmt: skip


def degraded() -> EjectionRequest:
    return EjectionRequest(
        health=Health.UNHEALTHY,
        reason="degraded: it may still serve",
        verdict=None,
        until_s=10.0,
        soft=True,
        ejector=Ejector.VERDICT,
        severity=0.4,
    )


def granted(
    zones: str,
    bad: set[int],
    asked_per_s: float | None,
    *,
    percent: float = 50.0,
    out: frozenset[str] = frozenset(),
) -> str:
    """A letter per engine: U if it was ejected, K if the floor kept it, else H."""
    fleet = engines(zones)
    relief = None
    if asked_per_s is not None:
        relief = ZoneRelief(per_s={one.id: PER_S for one in fleet}, asked_per_s=asked_per_s)
    found = granted_requests(
        fleet,
        {place: degraded() for place in bad},
        CapacityFloor(percent=percent, engines=1, relief=relief),
        lambda key: key.engine in out,
    )
    letters = {place: "K" if one.floor else "U" for place, one in found.items()}
    return "".join(letters.get(place, "H") for place in range(len(fleet)))


@pytest.mark.parametrize(
    ("asked_per_s", "letters"),
    [
        (None, "KHH"),  # unknown demand: the floor holds
        (3.6, "UHH"),  # 30 % of three engines fit two
        (2 * PER_S * FILL, "UHH"),
        (2 * PER_S, "KHH"),
        (12.0, "KHH"),
    ],
)
def test_lone_engine_is_ejected_while_other_zones_have_room(asked_per_s: float | None, letters: str) -> None:
    assert granted("abc", {0}, asked_per_s) == letters


def test_ejected_lone_engine_stays_out_until_others_are_full() -> None:
    asked_per_s = 2 * PER_S * (1 + FILL) / 2
    assert granted("abc", {0}, asked_per_s) == "KHH"
    assert granted("abc", {0}, asked_per_s, out=frozenset({"e0"})) == "UHH"
    assert granted("abc", {0}, 2 * PER_S + 0.1, out=frozenset({"e0"})) == "KHH"


def test_pool_floor_holds() -> None:
    assert granted("abc", {0, 1}, 0.1) == "UKH"
    assert granted("abc", {0}, 0.1, percent=100) == "KHH"


@settings(max_examples=200, deadline=None)
@given(
    st.text("abc", min_size=2, max_size=9),
    st.sets(st.integers(0, 8)),
    st.floats(0, 40),
    st.sampled_from([0.0, 50.0, 100.0]),
)
def test_good_zones_never_idle_while_a_bad_zone_serves(
    zones: str, bad: set[int], asked_per_s: float, percent: float
) -> None:
    bad = {place for place in bad if place < len(zones)}
    letters = granted(zones, bad, asked_per_s, percent=percent)
    left = [letter != "U" for letter in letters]
    assert 100 * sum(left) / len(left) >= percent or not any(letter == "U" for letter in letters)
    assert sum(left) >= 1
    room = PER_S * letters.count("H") * FILL
    if "K" in letters and room >= asked_per_s:
        least = (sum(left) - 1) / len(left)
        assert 100 * least < percent or sum(left) == 1, "only the pool's floor may keep a bad engine"
    # Decided again with these engines out, nothing changes.
    out = frozenset(f"e{place}" for place, letter in enumerate(letters) if letter == "U")
    assert granted(zones, bad, asked_per_s, percent=percent, out=out) == letters
