"""A busy engine that makes tokens more slowly than its peers gets what it can serve, within a report or two."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import EngineReport, ReportSource, Verdict
from xds_server.decide.decision_memory import EngineWork, PresentSpeed, WorkSnapshot
from xds_server.decide.decisions import EngineCapacity, EngineDecision, Health
from xds_server.decide.ejection.present_speed import CONFIRM_S, RISES_S, SLOWER, present_speeds
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.decide.recent_work import SPACING_S
from xds_server.decide.routing.endpoint_weights import weight_factors
from xds_server.model.fleet import Engine, EngineId

SLOTS = 8
NOW_S = 100.0


def engine(name: str, rate: float, in_flight: int = SLOTS, source: ReportSource = ReportSource.AGENT) -> Engine:
    """An engine whose running requests make ``rate`` tokens per second each."""
    running = min(in_flight, SLOTS)
    return Engine(
        id=EngineId("pool", name), address="10.0.0.1", port=8000, zone="a", region="", slots=SLOTS,
        weight=1, tensor_parallel_group="", labels={},
        report=EngineReport(
            pool="pool", engine=name, verdict=Verdict.READY, evidence="", observed_at_s=NOW_S,
            requests_in_flight=in_flight, requests_waiting=in_flight - running, tokens_per_s=rate * running,
            source=source,
        ),
        received_at_s=NOW_S,
    )  # fmt: skip


def fleet(rates: Sequence[float], in_flight: int = SLOTS) -> list[Engine]:
    return [engine(f"e{place}", rate, in_flight) for place, rate in enumerate(rates)]


def slower(
    engines: Sequence[Engine],
    before: Mapping[EngineId, PresentSpeed] | None = None,
    *,
    learned_s: Sequence[float] | None = None,
    work: Sequence[WorkSnapshot] = (),
    at_s: float = NOW_S,
) -> dict[EngineId, PresentSpeed]:
    times_s = learned_s or [0.5] * len(engines)
    return present_speeds(
        engines,
        {},
        {
            one.id: EngineCapacity(slots=SLOTS, service_s=service_s, source="")
            for one, service_s in zip(engines, times_s, strict=True)
        },
        min_peers=3,
        work=work,
        before=before or {},
        now_s=at_s,
    )


def test_busy_engine_slower_than_its_peers_is_found_by_one_report() -> None:
    found = slower(fleet([90, 30, 90, 90]))
    assert {key.engine: one.times for key, one in found.items()} == {"e1": pytest.approx(3.0)}


def worked(engines: Sequence[Engine], times: float, until_s: float, own: float = 3.0) -> list[WorkSnapshot]:
    """Snapshots of full engines whose calls take ``times`` their learned time, those of e1 ``own`` times."""
    return [
        WorkSnapshot(
            at_s=until_s - SPACING_S * (2 - step),
            engines={
                one.id: EngineWork(
                    in_use=SLOTS,
                    ended=int(SLOTS * step * SPACING_S / 0.5 / (own if one.id.engine == "e1" else times)),
                )
                for one in engines
            },
        )
        for step in range(3)
    ]


def test_engine_that_ends_as_many_calls_as_ever_keeps_its_share() -> None:
    """After a lull more requests run than made its tokens, so it looks slower than it is."""
    engines = fleet([90, 50, 90, 90])
    assert slower(engines, work=worked(engines, 1.0, NOW_S, own=1.0)) == {}
    began = slower(engines)
    later = slower(engines, began, work=worked(engines, 1.0, NOW_S + CONFIRM_S, own=1.1), at_s=NOW_S + CONFIRM_S)
    assert later == {}


@pytest.mark.parametrize(("times", "at_once"), [(1.0, True), (1.1, True), (1.5, False), (3.0, False)])
def test_share_falls_at_once_only_while_peers_keep_their_pace(times: float, at_once: bool) -> None:
    """A pool that slows down as a whole looks uneven at first: its engines report one by one."""
    engines, key = fleet([90, 30, 90, 90]), EngineId("pool", "e1")
    first = slower(engines, work=worked(engines, times, NOW_S))
    assert first[key].confirmed is at_once
    later = slower(engines, first, work=worked(engines, times, NOW_S), at_s=NOW_S + CONFIRM_S)
    assert later[key].confirmed


def test_pace_before_an_engine_became_slower_proves_nothing() -> None:
    engines, key = fleet([90, 30, 90, 90]), EngineId("pool", "e1")
    first = slower(engines, work=worked(engines, 1.0, NOW_S - 0.1))
    assert not first[key].confirmed
    assert slower(engines, first, work=worked(engines, 1.0, NOW_S + 0.1), at_s=NOW_S + 0.1)[key].confirmed


def test_too_few_calls_or_peers_prove_no_pace() -> None:
    engines, key = fleet([90, 30, 90, 90]), EngineId("pool", "e1")
    few = worked([engines[0], engines[1]], 1.0, NOW_S)
    assert not slower(engines, work=few)[key].confirmed


def test_engine_with_many_free_slots_keeps_its_share() -> None:
    assert slower(fleet([90, 30, 90, 90], in_flight=5)) == {}
    assert len(slower(fleet([90, 30, 90, 90], in_flight=6))) == 1


def test_learned_slowness_is_not_counted_twice() -> None:
    assert slower(fleet([90, 30, 90, 90]), learned_s=[0.5, 1.5, 0.5, 0.5]) == {}


def test_tokens_read_by_a_prober_move_no_share() -> None:
    rates = [90, 30, 90, 90]
    engines = [engine(f"e{place}", rate, source=ReportSource.PROBE) for place, rate in enumerate(rates)]
    assert slower(engines) == {}


def test_engines_slow_alike_or_without_peers_keep_their_shares() -> None:
    assert slower(fleet([30, 30, 31, 29])) == {}
    assert slower(fleet([90, 30])) == {}


def test_share_falls_at_once_and_rises_later() -> None:
    first = slower(fleet([90, 45, 90, 90]))
    key = EngineId("pool", "e1")
    worse = slower(fleet([90, 15, 90, 90]), first)
    assert worse[key].times == pytest.approx(6.0)
    better = slower(fleet([90, 45, 90, 90]), worse)
    assert better[key].times == pytest.approx(6.0)
    late = slower(fleet([90, 45, 90, 90]), better, at_s=NOW_S + RISES_S / 2)
    assert late[key].times == pytest.approx(6.0)
    risen = [
        slower([engine(f"e{place}", rate) for place, rate in enumerate([90, 45, 90, 90])], late, at_s=at_s)
        for at_s in (NOW_S + RISES_S,)
    ]
    assert risen[0][key].times == pytest.approx(2.0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.9, 1.1), min_size=3, max_size=12), st.data())
def test_noise_moves_no_share(noise: list[float], data: st.DataObject) -> None:
    rates = [90 * one for one in noise]
    assert slower(fleet(rates)) == {}
    place = data.draw(st.integers(0, len(noise) - 1))
    slow = [rate / 3 if at == place else rate for at, rate in enumerate(rates)]
    found = slower(fleet(slow))
    assert [key.engine for key in found] == [f"e{place}"]
    assert found[EngineId("pool", f"e{place}")].times >= SLOWER
    again = slower(fleet(slow), found)
    assert again == found


@settings(max_examples=200, deadline=None)
@given(
    share=st.sampled_from([0.05, 0.1, 0.2, 0.35, 0.5, 0.65]),
    wait_s=st.floats(0, 10),
    proxies=st.integers(1, 50),
    slots=st.integers(1, 64),
)
def test_callers_spend_no_longer_on_a_paced_engine(share: float, wait_s: float, proxies: int, slots: int) -> None:
    """Envoy picks by weight / (requests in flight + 1)."""
    engines = fleet([90, 90])
    capacity = EngineCapacity(slots=slots, service_s=0.5, source="")
    decisions = {
        one.id: EngineDecision(
            health=Health.HEALTHY, reason="", since_s=0, traffic_percent=percent, paced=percent < 100
        )
        for one, percent in zip(engines, (100.0, 100 * share), strict=True)
    }
    pool = PoolEngines(engines=engines, decisions=decisions, capacities={one.id: capacity for one in engines})
    factor = weight_factors({}, pool, wait_s=wait_s, proxies=proxies).get(engines[1].id, 1.0)
    held = slots * (1 + wait_s / 0.5) / proxies
    # Its requests in flight where it is picked as often as it can serve.
    there = factor * (held + 1) / share - 1
    assert factor < 0.016 or there <= 1.13 * (share * held + 1) - 1
