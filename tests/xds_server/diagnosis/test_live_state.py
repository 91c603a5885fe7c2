"""The state of ``switchgear top`` follows frames and differences, and sorts problems first."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.admin_api.live_types import EngineRow, EventRow, ZoneRow, wire_row
from xds_server.admin_api.parse import ShapeError
from xds_server.diagnosis.live_state import LiveState, bar, utilization, window


def engine(**fields: Any) -> EngineRow:
    return EngineRow(
        **({"pool": "chat", "health": "HEALTHY", "verdict": "ready", "slots": 10.0, "in_flight": 2} | fields)
    )


def board(engines: dict[str, EngineRow]) -> LiveState:
    made = LiveState()
    rows = {name: wire_row(one) for name, one in engines.items()}
    made.take("frame", {"at": 1.0, "tables": {"engines": rows}, "events": []})
    return made


def test_live_differences_update_the_frame() -> None:
    made = board({"a": engine(), "b": engine()})
    event = EventRow(number=1, at=1.5, kind="health", pool="chat")
    change = {
        "engines": {"a": {"inFlight": 9}, "b": None, "c": wire_row(engine(in_flight=1))},
        "zones": {"z": {"pool": "chat", "zone": "z", "healthy": 1, "engines": 2}},
        "moons": {"of a newer server": {"x": 1}},
    }
    made.take("change", {"at": 2.0, "tables": change, "events": [wire_row(event)]})
    assert made.tables.engines == {"a": engine(in_flight=9), "c": engine(in_flight=1)}
    assert made.tables.zones == {"z": ZoneRow(pool="chat", zone="z", healthy=1, engines=2)}
    assert made.at_unix_s == 2.0
    assert made.latest(5) == [event]
    assert made.latest(5, "other") == []
    made.take("frame", {"at": 3.0, "tables": {}, "events": []})
    assert (made.tables.engines, made.events) == ({}, ()), "a full frame replaces everything"


@pytest.mark.parametrize("message", [{}, {"at": 1.0, "tables": {"engines": {"a": {}}}, "events": []}, {"at": "x"}])
@pytest.mark.parametrize("event", ["frame", "change"])
def test_foreign_live_message_is_refused(event: str, message: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        LiveState().take(event, message)


def test_engines_sort_by_health_then_load() -> None:
    made = board(
        {
            "calm": engine(in_flight=0),
            "busy": engine(in_flight=9),
            "kept": engine(floor=True),
            "out": engine(health="UNHEALTHY"),
            "slow": engine(verdict="stalled", in_flight=1),
            "other": engine(pool="other", health="DRAINING"),
        }
    )
    assert [name for name, _ in made.engines("chat")] == ["out", "kept", "slow", "busy", "calm"]
    assert [name for name, _ in made.engines("chat", "load")][:1] == ["busy"]
    assert [name for name, _ in made.engines("", "name")] == ["busy", "calm", "kept", "other", "out", "slow"]


def test_conditions_are_sorted_by_severity() -> None:
    made = LiveState()
    rows = {"a": {"code": "SG205", "rank": 1}, "b": {"code": "SG204", "rank": 0}}
    made.take("frame", {"at": 1.0, "tables": {"conditions": rows}, "events": []})
    assert [one.code for one in made.conditions()] == ["SG204", "SG205"]
    made.take("change", {"at": 2.0, "tables": {"conditions": {"b": None}}, "events": []})
    assert [one.code for one in made.conditions()] == ["SG205"]


@pytest.mark.parametrize(
    ("ratio", "shown"), [(None, "-   "), (0, "····"), (0.5, "██··"), (1, "████"), (7.0, "████"), (-1, "····")]
)
def test_bar_has_a_fixed_width(ratio: float | None, shown: str) -> None:
    assert bar(ratio, 4) == shown


def test_utilization_is_unknown_without_slots() -> None:
    assert utilization(engine(slots=0)) is None
    assert utilization(engine(in_flight=None)) is None
    assert utilization(engine()) == 0.2


@given(st.integers(0, 60), st.integers(1, 30), st.data())
def test_selected_row_is_visible(count: int, room: int, data: st.DataObject) -> None:
    selected = data.draw(st.integers(0, max(0, count - 1)))
    first = window(range(count), selected, room)
    assert 0 <= first <= max(0, count - room)
    assert count == 0 or first <= selected < first + room
