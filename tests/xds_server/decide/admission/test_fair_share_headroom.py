"""A pool far below its ceiling refuses no request: idle proxies have places for new callers."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.xds_server.decide.admission.eight_engines import Pool, decided, engine, gateway, parts
from xds_server.decide.admission.fair_shares import STARTING_LIMIT, ShareClaim, proxy_shares
from xds_server.decide.decisions import EngineCapacity
from xds_server.model.pool_traffic import RATE_S

SERVICE_S = 0.25
STEP_S = 0.05


def small(*names: str) -> Pool:
    """Sixteen slots, at most sixteen requests in flight, and these gateways."""
    pool = Pool(limits={"maxConcurrent": 16})
    pool.engines = [engine(place, slots=2) for place in range(8)]
    pool.decisions = {one.id: decided() for one in pool.engines}
    pool.capacities = {one.id: EngineCapacity(slots=2.0, service_s=SERVICE_S, source="") for one in pool.engines}
    pool.proxies = {name: gateway(name) for name in names}
    return pool


@pytest.mark.parametrize("gateways", [2, 3])
@pytest.mark.parametrize("turn_s", [1.0, 3.0])
def test_moving_callers_are_never_shed_below_capacity(gateways: int, turn_s: float) -> None:
    names = [f"g{place}" for place in range(gateways)]
    for seed in range(4):
        rng, pool = random.Random(seed), small(*names)
        came: dict[str, list[float]] = {name: [] for name in names}
        ends: dict[str, list[float]] = {name: [] for name in names}
        room = parts(pool.decide())
        for step in range(200):
            now_s = step * STEP_S
            if now_s % turn_s < STEP_S:
                at = rng.choice(names)
            for name in names:
                ends[name] = [one for one in ends[name] if one > now_s]
            while sum(len(one) for one in ends.values()) < 4:
                assert len(ends[at]) < room[at], f"{at} has {room} at {now_s:.2f} s"
                ends[at].append(now_s + SERVICE_S)
                came[at].append(now_s)
            if step % 2:
                # Proxies report with a delay, and one without requests reports nothing.
                known_s = now_s - 0.5
                told = {
                    name: pool.told(sum(known_s - RATE_S < one <= known_s for one in times) / RATE_S)
                    for name, times in came.items()
                    if times and times[0] <= known_s
                }
                room = parts(pool.decide(2 * STEP_S, **told))


def test_open_requests_count_where_calls_exceed_the_known_duration() -> None:
    pool = small("a", "b", "c")
    long = {"in_flight_on": {"e0": 2, "e1": 2, "e2": 2, "e3": 2, "e4": 2}, "load_at_s": pool.now_s}
    one = pool.decide(a=pool.told(1.0, **long), b=pool.told(0.5), c=pool.told(0))
    assert parts(one)["a"] >= 12
    assert min(parts(one).values()) >= 1


@settings(max_examples=300, deadline=None)
@given(
    st.integers(12, 400),
    st.lists(st.tuples(st.floats(0, 8), st.integers(0, 3)), min_size=1, max_size=3),
    st.sampled_from([0.25, 0.5, 1.0]),
)
def test_fair_share_below_capacity_has_headroom(total: int, asked: list[tuple[float, int]], hold_s: float) -> None:
    askers = [ShareClaim(per_s=per_s, sheds=False, in_flight=carried) for per_s, carried in asked]
    found = proxy_shares(total, askers, hold_s, SERVICE_S)
    assert sum(found) == pytest.approx(total)
    needed = sum(max(3 * (one.per_s * SERVICE_S) ** 0.5, 2 + one.in_flight) + one.per_s * hold_s for one in askers)
    if needed + STARTING_LIMIT * len(askers) <= total:
        assert all(part >= STARTING_LIMIT - 1e-6 for part in found)
        assert all(part >= one.in_flight + 2 - 1e-6 for part, one in zip(found, askers, strict=True))


def test_shedding_proxy_gets_most_of_the_free_capacity() -> None:
    quiet, full = ShareClaim(per_s=0.0, sheds=False), ShareClaim(per_s=16.0, sheds=True)
    assert proxy_shares(64, [quiet, full], 0.5, SERVICE_S) == pytest.approx([4, 60])
    assert proxy_shares(12, [quiet, full], 0.25, SERVICE_S) == pytest.approx([1, 11])
