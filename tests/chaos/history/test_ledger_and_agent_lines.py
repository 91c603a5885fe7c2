"""Ledger lines and agent logs become events; other lines are skipped."""

from dataclasses import replace

import pytest

from chaos.history.event_sources import decision_event, decisions, detections
from chaos.history.history_events import ControlPlaneDecision, EngineDetection
from xds_server.decide.diff.change import Change, ChangeKind, Subject
from xds_server.ledger.event import ClockReading, Event, as_line, event_of

LEFT = event_of(
    Change(
        kind=ChangeKind.HEALTH,
        subject=Subject(pool="chat", engine="e3"),
        before="HEALTHY",
        after="UNHEALTHY",
        reason="hung",
        rule="EnginePool.spec.probe",
        numbers={"in_flight": 3.0, "odd": float("inf")},
    ),
    ClockReading(s=7.0, unix_s=1000.5),
    None,
)


def test_ledger_line_becomes_a_decision() -> None:
    assert decision_event(LEFT, 990.0) == ControlPlaneDecision(
        at_s=10.5,
        kind="health",
        engine="e3",
        subject="chat/e3",
        before="HEALTHY",
        after="UNHEALTHY",
        evidence="hung",
        rule="EnginePool.spec.probe",
        out=True,
        numbers={"in_flight": 3.0},
    )


@pytest.mark.parametrize(
    ("kind", "after", "out"),
    [
        (ChangeKind.HEALTH, "HEALTHY", False),
        (ChangeKind.HEALTH, "DRAINING", True),
        (ChangeKind.VERDICT, "hung", None),
        (ChangeKind.KEPT, "kept in rotation", None),
    ],
)
def test_ejection_is_read_from_health_events_only(kind: ChangeKind, after: str, out: bool | None) -> None:
    assert decision_event(replace(LEFT, kind=kind, after=after), 0.0).out is out


def test_collapsed_events_keep_their_count() -> None:
    assert decision_event(replace(LEFT, times=4), 0.0).numbers["times"] == 4


def test_invalid_lines_are_skipped() -> None:
    plain: Event = replace(LEFT, numbers={})
    lines = ["", "nonsense", as_line(plain), '{"kind": "health"}', as_line(plain)[:30]]
    assert list(decisions(lines, 990.0)) == [decision_event(plain, 990.0)]


def test_verdicts_are_extracted_from_agent_logs() -> None:
    lines = [
        '{"was": null, "now": "ready", "evidence": "produces tokens", "boot": 1, "event": "verdict", '
        '"level": "info", "timestamp": "2026-11-21T15:42:29.900525Z"}',
        '{"deadline_s": 30.0, "event": "drain.ordered", "level": "info", "timestamp": "2026-11-21T15:42:38Z"}',
        "Traceback (most recent call last):",
        '{"was": "ready", "now": "dead", "evidence": "connection refused", "boot": 2, "event": "verdict", '
        '"level": "info", "timestamp": "2026-11-21T15:42:32.5Z"}',
    ]
    began_unix_s = 1795275740.0  # 2026-11-21T15:42:20Z
    assert list(detections("e0", lines, began_unix_s)) == [
        EngineDetection(at_s=pytest.approx(9.900525), engine="e0", verdict="ready", evidence="produces tokens"),
        EngineDetection(at_s=12.5, engine="e0", verdict="dead", evidence="connection refused"),
    ]
