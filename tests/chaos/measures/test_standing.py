"""Who was out when, by whom, and whether there was a reason."""

from chaos.history.history import Outage
from chaos.measures.standing import Span, out_at_proxies, out_by_ledger, overlap, well
from tests.chaos import histories


def spans(found: list[Span]) -> list[tuple[float, float]]:
    return [(one.start_s, one.end_s) for one in found]


def well_times(*outages: Outage) -> list[tuple[float, float]]:
    return spans(well(histories.history(*outages, began=histories.began()), "e0", 30.0))


def test_the_ledger_is_read_from_out_to_in_and_to_the_end() -> None:
    lines = [
        histories.decided(5.0, "e0", out=True),
        histories.decided(6.0, "e0", out=True),
        histories.decided(6.5, "e0", out=None, kind="kept"),
        histories.decided(8.0, "e0", out=False),
        histories.decided(9.0, "e1", out=True),
        histories.decided(20.0, "e0", out=True),
    ]
    history = histories.history(began=histories.began(), decided=lines)
    assert spans(out_by_ledger(history, "e0", 30.0)) == [(5.0, 8.0), (20.0, 30.0)]
    assert spans(out_by_ledger(history, "e2", 30.0)) == []


def test_every_proxy_speaks_for_itself_until_its_last_word() -> None:
    samples = [
        histories.sample(at_s, {}, proxy=proxy, ejected=("e0",) if flagged else ())
        for at_s, proxy, flagged in (
            (1.0, "p0", True),
            (1.0, "p1", False),
            (2.0, "p0", False),
            (2.0, "p1", True),
            (3.0, "p1", True),
        )
    ]
    found = out_at_proxies(histories.history(began=histories.began(), samples=samples), "e0", 30.0)
    assert spans(found) == [(1.0, 2.0), (2.0, 3.0)]
    assert "p1 ejects it" in found[1].why


def test_an_engine_is_well_between_what_concerns_it() -> None:
    hit = histories.outage("e0", start_s=10.0, end_s=12.0)
    other = histories.outage("e1", start_s=3.0, end_s=4.0, name="other")
    dead = histories.outage(
        "control-plane", fault={"kind": "control_plane_killed"}, start_s=11.0, end_s=15.0, name="dead"
    )
    assert well_times() == [(0.0, 30.0)]
    assert well_times(other) == [(0.0, 30.0)]
    assert well_times(hit, other, dead) == [(0.0, 10.0), (15.0, 30.0)]
    assert well_times(histories.outage("e0", end_s=None)) == [(0.0, 10.0)]


def test_overlap_keeps_the_reason_of_the_first() -> None:
    found = overlap([Span(start_s=1, end_s=5, why="so")], [Span(start_s=0, end_s=2), Span(start_s=4, end_s=9)])
    assert [(one.start_s, one.end_s, one.why) for one in found] == [(1, 2, "so"), (4, 5, "so")]
