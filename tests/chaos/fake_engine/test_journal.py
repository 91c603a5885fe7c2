"""The book on disk: what was known of each call last, whatever ended the writer."""

from pathlib import Path

from chaos.fake_engine.book import CallRecord, Outcome
from chaos.fake_engine.journal import KILLED, Journal


def record(outcome: Outcome, reason: str = "", tokens: int = 0) -> CallRecord:
    return CallRecord(
        request_id="r",
        attempt=1,
        path="/v1/completions",
        streaming=True,
        outcome=outcome,
        reason=reason,
        arrived_at_s=1.0,
        closed_at_s=2.0,
        started_at_s=None,
        slot_s=0.5,
        stuck_s=0.0,
        tokens_asked=8,
        tokens_generated=tokens,
        tokens_sent=0,
    )


def test_the_last_line_of_a_call_holds_and_half_a_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "book"
    journal = Journal.open(path)
    journal.note(1, record(Outcome.FAILED, KILLED))
    journal.note(2, record(Outcome.FAILED, KILLED, tokens=3))
    journal.note(1, record(Outcome.FINISHED))
    journal.close()
    with path.open("a") as cut:
        cut.write('[3, {"request_id": "lo')
    known = {1: record(Outcome.FINISHED), 2: record(Outcome.FAILED, KILLED, tokens=3)}
    again = Journal.open(path)
    again.note(4, record(Outcome.FINISHED))
    again.close()
    assert again.earlier == known
    third = Journal.open(path)
    third.close()
    assert third.earlier == {**known, 4: record(Outcome.FINISHED)}


async def test_an_engine_goes_on_with_the_book_of_its_earlier_life(start_engine, client, tmp_path: Path) -> None:
    path = str(tmp_path / "book")
    first = await start_engine(journal=path)
    for _ in range(2):
        async with client.post(f"{first.url}/v1/completions", json={"prompt": "x"}) as answer:
            assert answer.status == 200
    await first.stop()
    second = await start_engine(journal=path)
    assert second.book.totals() == first.book.totals()
    async with client.post(f"{second.url}/v1/completions", json={"prompt": "x"}) as answer:
        assert answer.status == 200
    await second.stop()
    third = await start_engine(journal=path)
    assert (third.book.totals().finished, third.book.totals().in_flight) == (3, 0)
