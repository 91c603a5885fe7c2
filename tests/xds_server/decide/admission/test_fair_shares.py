"""Division of a ceiling by demand, and how fast its parts may move."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.route import PriorityClass
from tests.xds_server.decide.admission.eight_engines import BOTH, ONE, Pool, decided, gateway, parts
from xds_server.decide.admission.ceiling import ceiling_for_role
from xds_server.model.pool_traffic import ProxyTraffic


def test_fair_shares_follow_arrivals_including_shed_ones() -> None:
    pool = Pool()
    pool.out(0, 1, 2, 3)
    short = pool.decide(a=pool.told(90, shed=40), b=pool.told(30, shed=14))
    assert short.pressure == pytest.approx(120 / 64)
    assert parts(short) == {"a": 120, "b": 40}


def test_fair_shares_follow_demand_within_seconds() -> None:
    pool = Pool()
    pool.out(0, 1, 2, 3)
    for _ in range(20):
        pool.decide(a=pool.told(90), b=pool.told(30))
    for _ in range(20):
        after = pool.decide(a=pool.told(30), b=pool.told(90))
    assert parts(after) == pytest.approx({"a": 40, "b": 120}, abs=16)


def test_shedding_proxy_gets_free_capacity_in_the_next_round() -> None:
    pool = Pool(limits={"maxWait": "0s"})
    for _ in range(30):
        before = pool.decide(a=pool.told(60), b=pool.told(3))
    after = pool.decide(a=pool.told(60), b=pool.told(9, shed=0.5))
    assert parts(after)["b"] >= 2 * parts(before)["b"]
    assert sum(parts(after).values()) <= 64 + 2


def test_proxy_without_telemetry_keeps_an_even_fair_share() -> None:
    pool = Pool()
    pool.out(0, 1, 2, 3)
    pool.decide(a=pool.told(90), b=pool.told(30))
    lost = pool.decide(0.3, a=pool.told(90), b=pool.told(30, heard_at_s=pool.now_s - 6))
    assert parts(lost) == {"a": 80, "b": 80}
    assert lost.pressure == pytest.approx(180 / 64)
    pool.roles = {"gateway": 3}
    assert sum(parts(pool.decide(a=pool.told(90), b=pool.told(30))).values()) == pytest.approx(107, abs=1)
    pool.roles = None
    del pool.proxies["b"]
    assert parts(pool.decide(a=pool.told(90))) == {"a": 160}


def test_standby_gateway_takes_nothing_from_the_active_one() -> None:
    pool = Pool()
    pool.out(0, 1, 2, 3)
    assert parts(pool.decide(a=pool.told(90, shed=30))) == {"a": 160, "b": 80}


def test_demand_before_a_long_silence_is_ignored() -> None:
    pool = Pool()
    for _ in range(30):
        pool.decide(a=pool.told(0), b=pool.told(100))
    busy = parts(pool.decide(a=pool.told(0), b=pool.told(100)))
    assert busy["b"] > 5 * busy["a"]
    for _ in range(60):
        pool.decide(1.0, a=pool.told(0), b=pool.told(0))
    quiet = parts(pool.decide(a=pool.told(0), b=pool.told(0)))
    assert quiet["a"] == pytest.approx(quiet["b"], rel=0.1), "the first proxy with demand has room"


def test_fair_share_updates_are_rate_limited() -> None:
    pool = Pool()
    for _ in range(30):
        pool.decide(a=pool.told(50), b=pool.told(50))
    still = pool.memory.decided
    moved = pool.decide(a=pool.told(51), b=pool.told(50))
    assert still is not None
    assert moved.by_proxy is still.by_proxy
    moves = 0
    for place in range(50):
        known = pool.memory.decided
        now = pool.decide(a=pool.told(50 + 4 * place), b=pool.told(50))
        moves += known is not None and now.by_proxy["a"] is not known.by_proxy["a"]
    assert 5 <= moves <= 5 * 5 + 1


def test_sidecars_have_room_for_bursts_below_capacity() -> None:
    pool = Pool()
    pool.proxies = {f"s{place}": gateway(f"s{place}", role="sidecar") for place in range(100)}
    calm = pool.decide(**{node: pool.told(1.0) for node in pool.proxies})
    assert set(parts(calm).values()) == {6}
    full = pool.decide(**{node: pool.told(2.0, shed=0.5) for node in pool.proxies})
    assert full.crowded
    assert set(parts(full).values()) == {4}
    pool.memory = None
    quiet = pool.decide(**{node: pool.told(1.0 if node == "s0" else 0.0) for node in pool.proxies})
    assert pool.memory is not None
    assert min(parts(quiet).values()) >= 2
    assert ceiling_for_role(pool.memory, pool.resilience, "sidecar", {"sidecar": 100}).interactive == 4


def test_noise_moves_few_sidecar_parts_and_a_refusal_one_at_once() -> None:
    rng, pool = random.Random(1), Pool()
    pool.proxies = {f"s{place}": gateway(f"s{place}", role="sidecar") for place in range(100)}

    def noisy() -> dict[str, ProxyTraffic]:
        return {node: pool.told(0.8 * rng.uniform(0.7, 1.3)) for node in pool.proxies}

    for _ in range(50):
        before = pool.decide(**noisy())
    moves = 0
    for _ in range(50):
        now = pool.decide(**noisy())
        moves += sum(now.by_proxy[node] is not one for node, one in before.by_proxy.items())
        before = now
    assert not before.crowded
    assert moves <= 25, "of 5 000"
    woken = pool.decide(**{**noisy(), "s7": pool.told(8.0, shed=1.0)})
    assert woken.by_proxy["s7"].interactive >= 1.5 * before.by_proxy["s7"].interactive


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_fair_shares_of_gateways_never_exceed_the_total(data: st.DataObject) -> None:
    wait = data.draw(st.sampled_from(["0s", "250ms", "2s"]))
    pool = Pool(classes=data.draw(st.sampled_from([ONE, BOTH])), limits={"maxWait": wait})
    names = [f"g{place}" for place in range(data.draw(st.integers(1, 6)))]
    pool.proxies = {name: gateway(name) for name in names}
    rate = st.one_of(st.just(0.0), st.floats(0, 300))
    for _ in range(data.draw(st.integers(1, 8))):
        pool.decisions = {one.id: decided() for one in pool.engines}
        pool.out(*data.draw(st.sets(st.integers(0, 7))))
        loaded = {"in_flight_on": {"e0": 3, "e1": 4}, "load_at_s": pool.now_s}
        seen = {
            name: pool.told(
                data.draw(rate),
                data.draw(rate),
                shed_per_s={of: data.draw(st.sampled_from([0.0, 5.0])) for of in PriorityClass},
                **loaded,
            )
            for name in names
        }
        one = pool.decide(data.draw(st.floats(0.05, 1.0)), **seen)
        assert pool.memory is not None
        assert one.held == sum(pool.memory.stuck_by_proxy.values())
        # Each part may be rounded up by one; with two classes both parts of it.
        if pool.classes == ONE:
            whole = sum(limit.interactive for limit in one.by_proxy.values())
            assert one.total + one.held <= whole + 1e-6
            assert whole <= one.total + one.held + len(names)
        else:
            whole = sum(limit.interactive + limit.batch for limit in one.by_proxy.values())
            assert whole <= one.total + one.held + 2 * len(names)
        assert all(limit.interactive >= 1 and limit.batch >= 1 for limit in one.by_proxy.values())


# -- classes --------------------------------------------------------------------------------------------------
