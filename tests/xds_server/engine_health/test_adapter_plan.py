"""Which engine is asked for which adapter: spread, bounded, later after failures, never on an engine's word."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import EngineReport, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from xds_server.decide.decisions import NO_DECISIONS, EngineDecision, Health
from xds_server.engine_health.adapter_plan import (
    AWAY_S,
    BACKOFF,
    FRESH_S,
    LISTED_WITHIN_S,
    NO_ATTEMPTS,
    AdapterLoad,
    Attempts,
    Situation,
    accepted,
    due_loads,
    failed,
    settled,
)
from xds_server.model.fleet import EngineId, declared, with_report

NOW_S = 1000.0
WELL = EngineDecision(health=Health.HEALTHY, reason="ready", since_s=0.0)
SQL = {"name": "sql", "path": "/adapters/sql"}


def situation(
    engines: Mapping[str, tuple[str, ...] | None],
    *adapters: Mapping[str, Any],
    zones: Mapping[str, str] = {},
    slots: Mapping[str, int] = {},
    decisions: Mapping[str, EngineDecision] = {},
    boot_id: str = "b1",
    heard_s: float = NOW_S,
) -> Situation:
    """A pool of these engines with their listed adapters; None: not listed yet."""
    endpoints = [
        {
            "address": "10.0.0.1", "port": number, "name": name, "zone": zones.get(name, "a"),
            "slots": slots.get(name, 8),
        }
        for number, name in enumerate(engines, start=1)
    ]  # fmt: skip
    spec = {"model": "m", "endpoints": endpoints, "adapters": list(adapters)}
    pool = EnginePool.model_validate({"metadata": {"name": "p"}, "spec": spec})
    policies = PolicySet(pools={"p": pool}, routes={}, policies={}, effective={"p": ResilienceSpec()})
    fleet = declared(policies)
    for name, names in engines.items():
        report = EngineReport(
            pool="p", engine=name, verdict=Verdict.READY, evidence="", observed_at_s=heard_s, boot_id=boot_id,
            adapters=names,
        )  # fmt: skip
        fleet = with_report(fleet, report, heard_s)
    found = {EngineId("p", name): decisions.get(name, WELL) for name in engines}
    return Situation(policies, fleet, replace(NO_DECISIONS, engines=found))


def load(engine: str, adapter: str = "sql") -> AdapterLoad:
    return AdapterLoad(EngineId("p", engine), adapter)


def due(one: Situation, attempts: Attempts = NO_ATTEMPTS, *running: AdapterLoad, at_s: float = NOW_S) -> list[str]:
    return [f"{key.engine.engine}:{key.adapter}" for key in due_loads(one, attempts, running, at_s)]


def test_every_engine_gets_the_adapter_one_by_one() -> None:
    assert due(situation({"e0": (), "e1": ()}, SQL)) == ["e0:sql"]
    assert due(situation({"e0": (), "e1": ()}, SQL), NO_ATTEMPTS, load("e0")) == []
    assert due(situation({"e0": ("sql",), "e1": ()}, SQL)) == ["e1:sql"]
    assert due(situation({"e0": ("sql",), "e1": ("sql",)}, SQL)) == []


def test_large_pools_load_a_tenth_at_once() -> None:
    many: dict[str, tuple[str, ...] | None] = {f"e{number:03}": () for number in range(40)}
    assert len(due(situation(many, SQL))) == 4
    running = tuple(load(f"e{number:03}") for number in range(3))
    assert due(situation(many, SQL), NO_ATTEMPTS, *running) == ["e003:sql"]
    huge: dict[str, tuple[str, ...] | None] = {f"e{number:03}": () for number in range(400)}
    assert len(due(situation(huge, SQL))) == 8


def test_an_engine_loads_one_adapter_at_a_time() -> None:
    many: dict[str, tuple[str, ...] | None] = {f"e{number:02}": () for number in range(20)}
    found = due(situation(many, {**SQL, "engines": 1}, {"name": "law", "path": "/law", "engines": 1}))
    assert found == ["e00:sql", "e01:law"]


def test_the_zone_with_fewest_and_the_engine_with_most_room_are_chosen() -> None:
    two = {**SQL, "engines": 2}
    engines: dict[str, tuple[str, ...] | None] = {"e0": ("sql",), "e1": (), "e2": ()}
    assert due(situation(engines, two, zones={"e2": "b"})) == ["e2:sql"]
    assert due(situation(engines, two, slots={"e2": 32})) == ["e2:sql"]
    assert due(situation({**engines, "e1": ("x", "y")}, two)) == ["e2:sql"]
    assert due(situation(engines, {**SQL, "engines": 1})) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"health": Health.UNHEALTHY},
        {"health": Health.DRAINING},
        {"floor": True},
    ],
)
def test_engines_out_of_rotation_are_not_asked(changes: dict[str, Any]) -> None:
    out = {"e0": replace(WELL, **changes)}
    assert due(situation({"e0": (), "e1": ()}, SQL, decisions=out)) == ["e1:sql"]


def test_silent_engines_and_unknown_lists_are_not_asked() -> None:
    assert due(situation({"e0": None, "e1": ()}, SQL)) == ["e1:sql"]
    assert due(situation({"e0": ()}, SQL, heard_s=NOW_S - FRESH_S)) == []


def test_another_engine_replaces_one_that_is_ejected_for_long() -> None:
    one = {**SQL, "engines": 1}
    for since_s, found in ((NOW_S - AWAY_S + 1, []), (NOW_S - AWAY_S, ["e1:sql"])):
        out = {"e0": replace(WELL, health=Health.UNHEALTHY, since_s=since_s)}
        assert due(situation({"e0": ("sql",), "e1": ()}, one, decisions=out)) == found


def test_a_refusal_waits_and_another_engine_is_asked() -> None:
    one = {**SQL, "engines": 1}
    refused = failed(None, "b1", "HTTP 404", NOW_S)
    attempts = {load("e0"): refused}
    assert due(situation({"e0": (), "e1": ()}, one), attempts) == ["e1:sql"]
    assert due(situation({"e0": ()}, one), attempts) == []
    assert due(situation({"e0": ()}, one), attempts, at_s=NOW_S + BACKOFF.first_s) == ["e0:sql"]
    again = failed(refused, "b1", "HTTP 404", NOW_S)
    assert again.until_s == NOW_S + 2 * BACKOFF.first_s
    assert failed(again, "b2", "HTTP 404", NOW_S).failures == 1, "another process is asked at once"


def test_attempts_end_with_the_list() -> None:
    said = {load("e0"): accepted(None, "b1", NOW_S)}
    waiting = settled(said, situation({"e0": ()}, SQL), NOW_S + LISTED_WITHIN_S - 1)
    assert (waiting.attempts, waiting.ended) == (said, ())
    assert due(situation({"e0": ()}, SQL), said) == [], "asked once"
    listed = settled(said, situation({"e0": ("sql",)}, SQL), NOW_S + 2)
    assert (dict(listed.attempts), listed.ended) == ({}, ((load("e0"), "loaded"),))


def test_an_engine_that_lies_is_asked_later_and_later() -> None:
    lying = situation({"e0": ()}, SQL)
    before, at_s, waits = None, NOW_S, []
    for _ in range(8):
        ended = settled({load("e0"): accepted(before, "b1", at_s)}, lying, at_s + LISTED_WITHIN_S)
        assert ended.ended == ((load("e0"), "unlisted"),)
        before = ended.attempts[load("e0")]
        assert "does not list it" in before.trouble
        waits.append(before.until_s - at_s - LISTED_WITHIN_S)
        at_s = before.until_s
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]


@pytest.mark.parametrize(
    "now",
    [
        situation({"e0": ()}, SQL, boot_id="b2"),
        situation({"e0": ()}, {"name": "law", "path": "/law"}),
        situation({"e1": ()}, SQL),
        situation({"e0": ()}),
    ],
    ids=["restarted", "another adapter", "engine removed", "policy removed"],
)
def test_attempts_of_earlier_processes_and_policies_are_forgotten(now: Situation) -> None:
    for attempt in (failed(None, "b1", "HTTP 404", NOW_S), accepted(None, "b1", NOW_S)):
        assert settled({load("e0"): attempt}, now, NOW_S) == ({}, ())


NAMES = ("sql", "law", "code")


@given(
    st.lists(
        st.tuples(st.none() | st.sets(st.sampled_from(NAMES)), st.sampled_from(list(Health)), st.integers(1, 64)),
        min_size=1,
        max_size=24,
    ),
    st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(1, 30), max_size=3),
    st.data(),
)
def test_loads_are_bounded_useful_and_repeatable(
    engines: list[tuple[set[str] | None, Health, int]], wanted: dict[str, int | None], data: st.DataObject
) -> None:
    names = {
        f"e{number:02}": None if one[0] is None else tuple(sorted(one[0])) for number, one in enumerate(engines)
    }
    adapters = [
        {"name": name, "path": "/x"} if count is None else {"name": name, "path": "/x", "engines": count}
        for name, count in wanted.items()
    ]
    decisions = {f"e{number:02}": replace(WELL, health=one[1]) for number, one in enumerate(engines)}
    slots = {f"e{number:02}": one[2] for number, one in enumerate(engines)}
    now = situation(names, *adapters, slots=slots, decisions=decisions)
    running = {load(name) for name in data.draw(st.sets(st.sampled_from(sorted(names)), max_size=2))}
    found = due_loads(now, NO_ATTEMPTS, running, NOW_S)
    assert found == due_loads(now, NO_ATTEMPTS, running, NOW_S)
    asked_engines = [one.engine for one in found] + [one.engine for one in running]
    assert len(set(asked_engines)) == len(asked_engines), "an engine loads one at a time"
    assert len(asked_engines) <= max(1, len(engines) // 10) or not found
    for one in found:
        listed = names[one.engine.engine]
        assert listed is not None
        assert one.adapter in wanted
        assert one.adapter not in listed
        assert decisions[one.engine.engine].health is Health.HEALTHY
