"""Who asks for what, and when: drawn from a scenario's load, the same every time."""

from itertools import islice, takewhile
from typing import Any

import pytest

from chaos.load.arrival_schedule import ArrivalSchedule
from chaos.load.request_sender import Arrival, CallerRetries, LoadTarget
from chaos.scenario.arrival_trace import TraceRow
from chaos.scenario.scenario_model import LoadSpec

PROXIES = (LoadTarget(url="http://p0", name="p0", weight=3), LoadTarget(url="http://p1", name="p1", weight=1))


def schedule(
    rate_per_s: float = 100.0, seed: int = 1, trace: tuple[TraceRow, ...] = (), **load: Any
) -> ArrivalSchedule:
    return ArrivalSchedule(
        load=LoadSpec.model_validate(load), targets=PROXIES, rate_per_s=rate_per_s, seed=seed, trace=trace
    )


def until(end_s: float, one: ArrivalSchedule) -> list[Arrival]:
    return list(takewhile(lambda arrival: arrival.at_s < end_s, one.usual()))


def within(arrivals: list[Arrival], start_s: float, end_s: float) -> list[Arrival]:
    return [one for one in arrivals if start_s <= one.at_s < end_s]


def test_schedule_is_deterministic_per_seed() -> None:
    load = {"streaming_percent": 50, "batch_percent": 20, "prompt_tokens": {"shortest": 1, "longest": 99}}
    assert until(20, schedule(**load)) == until(20, schedule(**load))
    assert until(20, schedule(**load)) != until(20, schedule(seed=2, **load))


def test_arrivals_follow_the_load_spec() -> None:
    drawn = list(
        islice(
            schedule(
                streaming_percent=30,
                batch_percent=20,
                prompt_tokens={"shortest": 10, "longest": 20},
                output_tokens={"shortest": 5, "longest": 5},
            ).usual(),
            5000,
        )
    )
    assert drawn[-1].at_s == pytest.approx(50, rel=0.1)
    assert sum(one.streaming for one in drawn) / 5000 == pytest.approx(0.3, abs=0.03)
    assert sum(one.batch for one in drawn) / 5000 == pytest.approx(0.2, abs=0.03)
    assert sum(one.target.name == "p0" for one in drawn) / 5000 == pytest.approx(0.75, abs=0.03)
    assert {one.prompt_tokens for one in drawn} == set(range(10, 21))
    assert {one.max_tokens for one in drawn} == {5}
    assert [one.request_id for one in drawn[:2]] == ["load-1-1", "load-1-2"]


def test_surges_add_and_lulls_drop_arrivals() -> None:
    calm = until(60, schedule())
    stormy = until(
        60,
        schedule(
            surges=[{"at": "10s", "lasts": "10s", "factor": 3}, {"at": "40s", "lasts": "10s", "factor": 0.2}]
        ),
    )
    moments = {one.at_s for one in stormy}
    assert len(within(stormy, 10, 20)) == pytest.approx(3 * len(within(calm, 10, 20)), rel=0.15)
    assert len(within(stormy, 40, 50)) == pytest.approx(0.2 * len(within(calm, 40, 50)), rel=0.3)
    assert {one.at_s for one in calm if not 40 <= one.at_s < 50} <= moments
    assert {one.at_s for one in within(stormy, 40, 50)} <= {one.at_s for one in calm}
    assert stormy == sorted(stormy, key=lambda one: one.at_s)
    assert len({one.request_id for one in stormy}) == len(stormy)


def test_overlapping_surges_multiply() -> None:
    both = schedule(surges=[{"at": "0s", "lasts": "20s", "factor": 2}, {"at": "10s", "lasts": "20s", "factor": 2}])
    counts = [len(within(until(30, both), start, start + 10)) / 1000 for start in (0, 10, 20)]
    assert counts == pytest.approx([2, 4, 2], rel=0.1)


def test_turns_change_shares_not_arrivals() -> None:
    turned = until(20, schedule(turns=[{"at": "5s", "demand": [0, 1]}, {"at": "10s", "demand": [1, 0]}]))
    assert {one.target.name for one in within(turned, 5, 10)} == {"p1"}
    assert {one.target.name for one in within(turned, 10, 20)} == {"p0"}
    assert [one.at_s for one in turned] == [one.at_s for one in until(20, schedule())]


def test_trace_values_override_drawn_ones() -> None:
    trace = (TraceRow(at_s=1, streaming=True, output_tokens=7), TraceRow(at_s=2, batch=True, prompt_tokens=9))
    first, second = schedule(trace=trace).usual()
    assert (first.at_s, first.streaming, first.max_tokens, first.prompt_tokens) == (1, True, 7, 16)
    assert (second.at_s, second.streaming, second.batch, second.prompt_tokens) == (2, False, True, 9)
    assert 24 <= second.max_tokens <= 68


def test_extra_load_is_added_from_its_start() -> None:
    more = list(takewhile(lambda one: one.at_s < 20, schedule().more("more1", 3, 10)))
    assert more[0].at_s >= 10
    assert len(more) == pytest.approx(2000, rel=0.1)
    assert more[0].request_id == "load-1-more1-1"
    assert list(schedule().more("more1", 1, 10)) == []


def test_thundering_herd_arrives_at_once() -> None:
    herd = list(schedule().herd("herd1", 50, 4.5))
    assert {one.at_s for one in herd} == {4.5}
    assert len({one.request_id for one in herd}) == 50
    assert {one.target.name for one in herd} == {"p0", "p1"}


def test_client_retry_count_comes_from_the_load_spec() -> None:
    load = {"client_retries": {"attempts": 4, "backoff": "250ms"}}
    assert schedule(**load).retries == CallerRetries(attempts=4, backoff_s=0.25)


def test_groups_of_callers_share_the_requests_by_demand() -> None:
    callers = [{"name": "noisy", "demand": 3}, {"name": "calm"}]
    drawn = list(islice(schedule(callers=callers).usual(), 4000))
    assert sum(one.group == "noisy" for one in drawn) == pytest.approx(3000, rel=0.05)
    assert {one.group for one in drawn} == {"noisy", "calm"}
    assert {one.group for one in islice(schedule().usual(), 10)} == {""}


def test_group_of_callers_may_begin_later_and_changes_no_other_arrival() -> None:
    callers = [{"name": "noisy", "demand": 3, "begins": "5s"}, {"name": "calm"}]
    drawn = until(10, schedule(callers=callers))
    assert {one.group for one in within(drawn, 0, 5)} == {"calm"}
    assert {one.group for one in within(drawn, 5, 10)} == {"noisy", "calm"}
    same = until(10, schedule(callers=[{"name": "noisy", "demand": 3}, {"name": "calm"}]))
    calm = [(one.at_s, one.max_tokens, one.target.name) for one in same if one.group == "calm"]
    assert [(one.at_s, one.max_tokens, one.target.name) for one in drawn if one.group == "calm"] == calm
