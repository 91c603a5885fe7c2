"""The book on disk: what was known of each call last, whatever ended the writer."""

from pathlib import Path

from chaos.fake_engine.call_journal import KILLED, CallJournal
from chaos.fake_engine.call_log import CallOutcome, CallRecord


def record(outcome: CallOutcome, reason: str = "", tokens: int = 0) -> CallRecord:
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


def test_last_complete_line_of_a_call_counts(tmp_path: Path) -> None:
    path = tmp_path / "book"
    journal = CallJournal.open(path)
    journal.note(1, record(CallOutcome.FAILED, KILLED))
    journal.note(2, record(CallOutcome.FAILED, KILLED, tokens=3))
    journal.note(1, record(CallOutcome.FINISHED))
    journal.close()
    with path.open("a") as cut:
        cut.write('[3, {"request_id": "lo')
    known = {1: record(CallOutcome.FINISHED), 2: record(CallOutcome.FAILED, KILLED, tokens=3)}
    again = CallJournal.open(path)
    again.note(4, record(CallOutcome.FINISHED))
    again.close()
    assert again.earlier == known
    third = CallJournal.open(path)
    third.close()
    assert third.earlier == {**known, 4: record(CallOutcome.FINISHED)}


async def test_restarted_engine_continues_its_journal(start_engine, client, tmp_path: Path) -> None:
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
