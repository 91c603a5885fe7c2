"""Stored events are bounded, and flapping is stored once."""

from hypothesis import given
from hypothesis import strategies as st

from xds_server.decide.diff.change import ChangeKind, Subject
from xds_server.ledger.event import Event
from xds_server.ledger.event_store import FLAPS_WITHIN_S, EventStore


def event(engine: str, before: str, after: str, at_s: float, kind: ChangeKind = ChangeKind.HEALTH) -> Event:
    return Event(
        number=0,
        at_s=at_s,
        at_unix_s=at_s,
        first_unix_s=at_s,
        kind=kind,
        subject=Subject(pool="chat", engine=engine),
        before=before,
        after=after,
        evidence=f"at {at_s}",
    )


def test_flapping_events_are_deduplicated_into_one_counted_pair() -> None:
    book = EventStore()
    book.add(event("quiet", "in", "out", 0.0))
    for turn in range(14):
        book.add(event("r1", "in", "out", 1.0 + 4 * turn))
        book.add(event("r1", "out", "in", 3.0 + 4 * turn))
    left, back = book.related(engine="r1")
    assert (left.after, left.times, left.first_unix_s, left.at_unix_s) == ("out", 14, 1.0, 53.0)
    assert (back.after, back.times, back.evidence) == ("in", 14, "at 55.0")
    assert [one.times for one in book.related(engine="quiet")] == [1]


def test_late_repetition_is_a_new_event() -> None:
    book = EventStore()
    for at_s in (0.0, FLAPS_WITHIN_S + 2):
        book.add(event("r1", "in", "out", at_s))
        book.add(event("r1", "out", "in", at_s + 1))
    assert [one.times for one in book.related(engine="r1")] == [1, 1, 1, 1]


def test_flapping_is_detected_across_other_kinds() -> None:
    book = EventStore()
    for at_s in (0.0, 2.0):
        book.add(event("r1", "in", "out", at_s))
        book.add(event("r1", "closed", "open", at_s, ChangeKind.BREAKER))
        book.add(event("r1", "out", "in", at_s + 1))
    assert sorted((one.kind.value, one.after, one.times) for one in book.related(engine="r1")) == [
        ("breaker", "open", 1),
        ("breaker", "open", 1),
        ("health", "in", 2),
        ("health", "out", 2),
    ]


@given(
    told=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.sampled_from("abc"), st.floats(0, 100)),
        max_size=200,
    )
)
def test_event_store_is_bounded_and_ordered(told: list[tuple[int, str, str, float]]) -> None:
    book, at_s = EventStore(most=20, most_of_one=5), 0.0
    for engine, before, after, later_s in told:
        at_s += later_s
        added = book.add(event(f"r{engine}", before, after, at_s))
        # The newest is always there, as it came.
        assert book.since(added.number - 1) == [added]
        assert (added.before, added.after, added.at_s) == (before, after, at_s)
    assert len(book) <= 20
    for engine in range(6):
        own = book.related(engine=f"r{engine}")
        assert len(own) <= 5
        assert [one.number for one in own] == sorted(one.number for one in own)
    everything = book.since(0)
    assert len(everything) == len(book)
    assert {one.number for one in everything} == {
        one.number for engine in range(6) for one in book.related(engine=f"r{engine}")
    }
    # Whatever was merged or dropped, only real transitions are counted.
    assert sum(one.times for one in everything) <= len(told)
