"""Transitions read as plain English, and every kind of event has a text."""

import pytest

from xds_server.decide.diff.change import ChangeKind
from xds_server.diagnosis.event_text import change_text


@pytest.mark.parametrize(
    ("kind", "before", "after", "text"),
    [
        ("health", "HEALTHY", "UNHEALTHY", "ejected"),
        ("health", "UNHEALTHY", "HEALTHY", "returned to rotation"),
        ("health", "HEALTHY", "DRAINING", "draining"),
        ("health", "", "UNHEALTHY", "health: UNHEALTHY"),
        ("verdict", "hung", "producing", "recovered"),
        ("verdict", "no report", "producing", "verdict: no report -> producing"),
        ("verdict", "ready", "hung", "verdict: ready -> hung"),
        ("kept", "ejectable", "kept in rotation", "kept in rotation by the capacity floor"),
        ("kept", "kept in rotation", "ejectable", "no longer kept in rotation by the capacity floor"),
        ("cut", "off", "on", "cutting requests: off -> on"),
        ("demand", "below capacity", "above capacity", "demand below -> above capacity"),
        ("zones", "", "a 99.9 %, b 0.1 %", "zone split a 99.9 %, b 0.1 %"),
        ("ceiling", "308", "220", "admission limit: 308 -> 220 requests"),
        ("ladder", "level 0", "level 1", "degradation: level 0 -> level 1"),
        ("alien", "x", "y", "alien: x -> y"),
    ],
)
def test_transition_reads_as_plain_english(kind: str, before: str, after: str, text: str) -> None:
    assert change_text(kind, before, after) == text


@pytest.mark.parametrize("kind", ChangeKind)
def test_every_kind_has_a_text(kind: ChangeKind) -> None:
    assert "new" in change_text(kind.value, "old", "new") or kind is ChangeKind.KEPT
