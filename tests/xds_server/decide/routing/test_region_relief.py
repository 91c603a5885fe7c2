"""One measure of ability for floors and regions: good engines elsewhere are used before bad ones at home."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.resilience import ResilienceSpec
from xds_server.decide.decision_memory import (
    NO_POOL_MEMORY,
    AdmissionMemory,
    CapacityMemory,
    Demand,
    PoolMemory,
    RegionMemory,
)
from xds_server.decide.decisions import AdmissionDecision, Ejector, EngineCapacity, EngineDecision, Health
from xds_server.decide.ejection.arbitration import CapacityFloor, granted_requests
from xds_server.decide.ejection.report_evidence import EjectionRequest
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.decide.routing.region_shares import region_shares, revisions_by_region
from xds_server.decide.routing.zone_relief import zone_relief
from xds_server.model.fleet import Engine, EngineId

PER_S = 10.0
CAPACITY = EngineCapacity(slots=5, service_s=0.5, source="")


def engines(places: str) -> list[Engine]:
    """Written as ``eu/a eu/b us/c:2.0``: region, zone and revision."""
    found = []
    for number, text in enumerate(places.split()):
        place, _, revision = text.partition(":")
        region, _, zone = place.partition("/")
        found.append(
            Engine(
                id=EngineId("pool", f"e{number}"), address="10.0.0.1", port=8000, zone=zone, region=region,
                slots=5, weight=1, tensor_parallel_group="", labels={}, revision=revision,
            )
        )  # fmt: skip
    return found


def failing(ability: float = 0.0) -> EjectionRequest:
    return EjectionRequest(
        health=Health.UNHEALTHY, reason="errors", verdict=None, until_s=10.0, soft=True, ejector=Ejector.ERRORS,
        severity=1 - ability, ability=ability,
    )  # fmt: skip


def memory(fleet: Sequence[Engine], asked_per_s: float) -> PoolMemory:
    demand = Demand(
        interactive_per_s=asked_per_s, batch_per_s=0, sheds_interactive=False, sheds_batch=False, at_s=0
    )
    decided = AdmissionDecision(
        total=1, interactive=1, batch=1, held=0, slots=1, wait_s=2.0, pressure=None, utilization=None,
        in_force=True, by_proxy={}, capacities={}, reason="", retry_percent=100, retry_min_concurrency=1,
        crowded=False,
    )  # fmt: skip
    return replace(
        NO_POOL_MEMORY,
        admission=AdmissionMemory(decided=decided, demand={"p": demand}),
        capacity=CapacityMemory(capacities={one.id: CAPACITY for one in fleet}),
    )


def granted(
    fleet: Sequence[Engine],
    bad: Mapping[int, float],
    asked_per_s: float,
    *,
    residency: frozenset[frozenset[str]] = frozenset(),
    **resilience: object,
) -> dict[int, EjectionRequest]:
    spec = ResilienceSpec.model_validate(resilience)
    relief = zone_relief(spec, fleet, residency, memory(fleet, asked_per_s), 0.0)
    wishes = {place: failing(ability) for place, ability in bad.items()}
    return granted_requests(fleet, wishes, CapacityFloor(percent=50.0, engines=1, relief=relief), lambda _: False)


def out(found: Mapping[int, EjectionRequest]) -> set[int]:
    return {place for place, one in found.items() if one.health is Health.UNHEALTHY}


def decided(fleet: Sequence[Engine], found: Mapping[int, EjectionRequest]) -> PoolEngines:
    return PoolEngines(
        engines=fleet,
        decisions={
            one.id: EngineDecision(
                health=request.health,
                reason="",
                since_s=0,
                floor=request.floor,
                traffic_percent=request.traffic_percent,
            )
            if (request := found.get(place)) is not None
            else EngineDecision(health=Health.HEALTHY, reason="", since_s=0)
            for place, one in enumerate(fleet)
        },
        capacities={one.id: CAPACITY for one in fleet},
    )


REGIONS = "eu/a eu/b us/c us/d"


def test_failing_region_is_emptied_while_another_has_room() -> None:
    assert out(granted(engines(REGIONS), {0: 0.0, 1: 0.0}, 15.0)) == {0, 1}
    found = granted(engines(REGIONS), {0: 0.0, 1: 0.0}, 25.0)
    assert not out(found), "the other region is full"
    assert {one.traffic_percent for one in found.values()} == {5.0}


@pytest.mark.parametrize(
    ("places", "options"),
    [
        ("eu/a:1.0 eu/b:1.0 us/c:2.0 us/d:2.0", {}),
        (REGIONS, {"regions": {"serving": "active-standby", "order": ["eu", "us"]}}),
        (REGIONS, {"regions": {"mode": "shadow"}}),
        (REGIONS, {"residency": frozenset({frozenset({"eu"})})}),
        (REGIONS, {"zones": {"maxCrossZonePercent": 50}}),
    ],
)
def test_regions_that_must_not_help_empty_no_zone(places: str, options: dict[str, object]) -> None:
    assert out(granted(engines(places), {0: 0.0, 1: 0.0}, 15.0, **options)) == set()  # type: ignore[arg-type]


def test_residency_of_several_regions_allows_help_among_them() -> None:
    kept_in = frozenset({frozenset({"eu", "us"})})
    assert out(granted(engines(REGIONS), {0: 0.0, 1: 0.0}, 15.0, residency=kept_in)) == {0, 1}


def shares(pool: PoolEngines, asked: Mapping[str, float], seconds: float = 0.0) -> dict[str, dict[str, float]]:
    """The regions that serve each region's callers after this time."""
    policy, now_s = ResilienceSpec().regions, 0.0
    found = RegionMemory(revisions=revisions_by_region(pool.engines, {}, now_s))
    found = region_shares(pool, policy, asked, shadow=False, before=found, now_s=now_s)
    while now_s < seconds:
        now_s += 0.5
        found = region_shares(pool, policy, asked, shadow=False, before=found, now_s=now_s)
    return {region: dict(one.shares) for region, one in found.shares.items() if region}


def test_callers_of_a_failing_region_leave_at_once() -> None:
    fleet = engines("eu/a eu/b us/c us/d us/e")
    found = granted(fleet, {0: 0.0, 1: 0.0}, 28.0)
    assert not out(found)
    away = shares(decided(fleet, found), {"eu": 18.0, "us": 10.0})
    assert away["eu"]["us"] >= 0.9
    # A region that is only short of capacity waits, as before.
    half = decided(fleet, granted(fleet, {0: 0.0}, 28.0))
    assert shares(half, {"eu": 18.0, "us": 10.0})["eu"] == {"eu": 1.0}


@settings(max_examples=300, deadline=None)
@given(
    places=st.lists(st.sampled_from(["eu/a", "eu/b", "us/c", "us/d", "ap/e"]), min_size=2, max_size=10),
    drawn=st.dictionaries(st.integers(0, 9), st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9]), max_size=10),
    asked=st.fixed_dictionaries({region: st.floats(0.1, 60) for region in ("eu", "us", "ap")}),
)
def test_good_regions_never_idle_while_callers_are_refused(
    places: list[str], drawn: dict[int, float], asked: dict[str, float]
) -> None:
    fleet = engines(" ".join(places))
    regions = {one.region for one in fleet}
    asked = {region: per_s for region, per_s in asked.items() if region in regions}
    found = granted(fleet, {at: able for at, able in drawn.items() if at < len(fleet)}, sum(asked.values()))
    pool = decided(fleet, found)
    able = {
        region: sum(pool.able_per_s(one.id) for one in fleet if one.region == region) for region in sorted(regions)
    }
    if len(regions) < 2 or not any(able.values()):
        return
    served = shares(pool, asked, seconds=10.0)
    arriving = dict.fromkeys(regions, 0.0)
    for caller, per_s in asked.items():
        for region, share in served[caller].items():
            arriving[region] += per_s * share
    refused = sum(max(0.0, arriving[region] - able[region]) for region in regions)
    idle = sum(max(0.0, able[region] - arriving[region]) for region in regions)
    # Shares move in steps, and each region decides alone: two that are short may count on the same room.
    step = 0.05 * sum(asked.values())
    assert min(refused, idle) <= step + 1e-6
