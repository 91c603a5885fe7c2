"""Ejection spans, by control plane and proxy, and their reasons."""

from chaos.history.recorded_history import Outage
from chaos.measures.ejection_spans import (
    EjectionSpan,
    control_plane_ejections,
    healthy_spans,
    proxy_ejections,
    span_intersection,
)
from tests.chaos import history_builders


def spans(found: list[EjectionSpan]) -> list[tuple[float, float]]:
    return [(one.start_s, one.end_s) for one in found]


def well_times(*outages: Outage) -> list[tuple[float, float]]:
    return spans(healthy_spans(history_builders.history(*outages, began=history_builders.began()), "e0", 30.0))


def test_ejection_spans_are_read_from_the_ledger() -> None:
    lines = [
        history_builders.decided(5.0, "e0", out=True),
        history_builders.decided(6.0, "e0", out=True),
        history_builders.decided(6.5, "e0", out=None, kind="kept"),
        history_builders.decided(8.0, "e0", out=False),
        history_builders.decided(9.0, "e1", out=True),
        history_builders.decided(20.0, "e0", out=True),
    ]
    history = history_builders.history(began=history_builders.began(), decided=lines)
    assert spans(control_plane_ejections(history, "e0", 30.0)) == [(5.0, 8.0), (20.0, 30.0)]
    assert spans(control_plane_ejections(history, "e2", 30.0)) == []


def test_outlier_ejections_are_tracked_per_proxy_until_its_last_sample() -> None:
    samples = [
        history_builders.sample(at_s, {}, proxy=proxy, ejected=("e0",) if flagged else ())
        for at_s, proxy, flagged in (
            (1.0, "p0", True),
            (1.0, "p1", False),
            (2.0, "p0", False),
            (2.0, "p1", True),
            (3.0, "p1", True),
        )
    ]
    found = proxy_ejections(history_builders.history(began=history_builders.began(), samples=samples), "e0", 30.0)
    assert spans(found) == [(1.0, 2.0), (2.0, 3.0)]
    assert "ejected by outlier detection at p1" in found[1].why


def test_healthy_spans_exclude_relevant_faults() -> None:
    hit = history_builders.outage("e0", start_s=10.0, end_s=12.0)
    other = history_builders.outage("e1", start_s=3.0, end_s=4.0, name="other")
    dead = history_builders.outage(
        "control-plane", fault={"kind": "control_plane_killed"}, start_s=11.0, end_s=15.0, name="dead"
    )
    assert well_times() == [(0.0, 30.0)]
    assert well_times(other) == [(0.0, 30.0)]
    assert well_times(hit, other, dead) == [(0.0, 10.0), (15.0, 30.0)]
    assert well_times(history_builders.outage("e0", end_s=None)) == [(0.0, 10.0)]


def test_overlap_keeps_the_first_reason() -> None:
    found = span_intersection(
        [EjectionSpan(start_s=1, end_s=5, why="so")],
        [EjectionSpan(start_s=0, end_s=2), EjectionSpan(start_s=4, end_s=9)],
    )
    assert [(one.start_s, one.end_s, one.why) for one in found] == [(1, 2, "so"), (4, 5, "so")]
