"""Each transition of the decisions is one event: with its policy line, its numbers and its end."""

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path

import structlog

from policies.model import PolicySet
from tests.xds_server.ledger.conftest import decided, seen
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.decide.diff.change import ChangeKind
from xds_server.ledger.event import ClockReading, as_line, from_line
from xds_server.ledger.jsonl_writer import JsonlWriter, tail
from xds_server.ledger.ledger import TELEMETRY_EVENTS, Ledger, ledger_from
from xds_server.model.fleet import Fleet
from xds_server.model.pool_traffic import EngineTraffic

OUT = EngineDecision(
    health=Health.UNHEALTHY,
    reason="12 of its last 25 calls failed",
    since_s=100.0,
    ejector=Ejector.ERRORS,
    until_s=160.0,
    returns="by five good trial calls",
)
BACK = EngineDecision(health=Health.HEALTHY, reason="five good trial calls", since_s=161.0)


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def ledger(self, lines: JsonlWriter | None = None) -> Ledger:
        return Ledger(lines, clock=lambda: self.s, wall=lambda: 1_000_000.0 + self.s)


def test_event_has_numbers_place_and_deadline(policies: PolicySet, fleet: Fleet) -> None:
    clock = Clock()
    ledger = clock.ledger()
    ledger.observe(policies, fleet, decided(fleet))
    failing = seen(fleet, {"r1": EngineTraffic(window_calls=25, window_failures=12)})
    ledger.observe(policies, failing, decided(fleet, r1=OUT))
    (event,) = [one for one in ledger.book.since(0) if one.kind is ChangeKind.HEALTH]
    assert (event.before, event.after, event.at_unix_s) == ("HEALTHY", "UNHEALTHY", 1_000_100.0)
    assert event.evidence == "12 of its last 25 calls failed"
    assert event.numbers["window_failures"] == 12
    assert event.rule == "ResiliencePolicy.spec.breaker.errorRatePercent"
    assert event.place.endswith("chat.yaml:19")
    assert (event.returns, event.until_unix_s) == ("by five good trial calls", 1_000_160.0)


def test_persisting_state_is_one_event(policies: PolicySet, fleet: Fleet) -> None:
    ledger = Clock().ledger()
    assert ledger.observe(policies, fleet, decided(fleet)) == []
    assert len(ledger.observe(policies, fleet, decided(fleet, r1=OUT))) == 1
    assert ledger.observe(policies, fleet, decided(fleet, r1=replace(OUT, reason="13 of 25"))) == []


async def test_flapping_is_logged_rarely_and_stored_always(
    tmp_path: Path, policies: PolicySet, fleet: Fleet
) -> None:
    clock, file = Clock(), tmp_path / "ledger.jsonl"
    lines = JsonlWriter(file, 1_000_000)
    ledger = clock.ledger(lines)
    ledger.observe(policies, fleet, decided(fleet))
    with structlog.testing.capture_logs() as logs:
        for _ in range(32):
            clock.s += 1
            ledger.observe(policies, fleet, decided(fleet, r1=OUT))
            ledger.observe(policies, fleet, decided(fleet, r1=BACK))
    # The 1st, 2nd, 4th, 8th, 16th and 32nd time, both ways.
    assert [line.get("times", 1) for line in logs if line["event"] == "engine.health"] == [
        times for times in (1, 2, 4, 8, 16, 32) for _ in range(2)
    ]
    assert len(ledger.book) == 2
    await _written(lines)
    written = [json.loads(line) for line in tail(file)]
    assert [one.get("times", 1) for one in written] == [times for times in range(1, 33) for _ in range(2)]
    again = Clock().ledger()
    again.read(tail(file))
    assert [(one.after, one.times) for one in again.book.since(0)] == [("UNHEALTHY", 32), ("HEALTHY", 32)]


def test_telemetry_loss_and_return_are_one_event_each(policies: PolicySet, fleet: Fleet) -> None:
    ledger = Clock().ledger()
    told: list[tuple[str, str, bool]] = []
    silent = {"access_log": frozenset({"gw-1"}), "load_report": frozenset[str]()}
    for lost in ({}, silent, silent, {"access_log": frozenset[str]()}):
        events = ledger.observe(policies, fleet, decided(fleet), lost)
        told.extend((str(one.subject), one.after, one.alarm) for one in events)
    assert told == [("gw-1", "access logs missing", True), ("gw-1", "access logs received", False)]


def test_made_up_proxies_push_no_other_events_out(policies: PolicySet, fleet: Fleet) -> None:
    clock = Clock()
    ledger = clock.ledger()
    ledger.observe(policies, fleet, decided(fleet))
    ledger.observe(policies, fleet, decided(fleet, r1=OUT))
    for number in range(60):
        clock.s += 1.0
        silent = frozenset(f"made-up-{number}-{each}" for each in range(400))
        ledger.observe(policies, fleet, decided(fleet, r1=OUT), {"load_report": silent})
    kinds = [event.kind for event in ledger.book.since(0)]
    assert ChangeKind.HEALTH in kinds
    assert kinds.count(ChangeKind.TELEMETRY) <= TELEMETRY_EVENTS.burst + 60 * TELEMETRY_EVENTS.per_s
    clock.s += 60.0
    ledger.observe(policies, fleet, decided(fleet, r1=OUT), {"access_log": frozenset({"real"})})
    assert "real" in {event.subject.proxy for event in ledger.book.since(0)}, "the budget refills"


async def _written(lines: JsonlWriter) -> None:
    """Wait until all queued lines are in the file."""
    writer = asyncio.create_task(lines.run())
    await asyncio.sleep(0)
    writer.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writer


async def test_ledger_file_is_restored_without_truncated_lines(
    tmp_path: Path, policies: PolicySet, fleet: Fleet
) -> None:
    clock, file = Clock(), tmp_path / "ledger.jsonl"
    lines = JsonlWriter(file, 10_000)
    ledger = clock.ledger(lines)
    ledger.observe(policies, fleet, decided(fleet))
    ledger.observe(policies, fleet, decided(fleet, r1=OUT))
    await _written(lines)
    with file.open("a") as half:
        half.write('{"number": 7, "at_s"')
    assert json.loads(tail(file)[0])["kind"] == "health"
    again = Clock().ledger()
    again.read(tail(file))
    (event,) = again.book.since(0)
    (before,) = ledger.book.since(0)
    assert replace(event, at_s=before.at_s) == before
    with structlog.testing.capture_logs() as logs:
        assert len(ledger_from(None, tail(file)).book) == 1
    assert [line["lines"] for line in logs] == [1]


def test_events_name_failed_requests(policies: PolicySet, fleet: Fleet) -> None:
    asked: list[tuple[str, str, float]] = []

    def failed(pool: str, engine: str, now_s: float) -> tuple[str, ...]:
        asked.append((pool, engine, now_s))
        return ("id-2", "id-1")

    ledger = Clock().ledger()
    ledger.observe(policies, fleet, decided(fleet), failed_requests=failed)
    (out,) = ledger.observe(policies, fleet, decided(fleet, r1=OUT), failed_requests=failed)
    assert out.requests == ("id-2", "id-1")
    assert asked == [("chat", "r1", 100.0)]
    assert from_line(as_line(out), ClockReading(s=100.0, unix_s=1_000_100.0)) == out
    (back,) = ledger.observe(policies, fleet, decided(fleet, r1=BACK), failed_requests=failed)
    assert back.requests == ()  # failed requests are not evidence for a return


def test_recoveries_while_down_are_reported_once(policies: PolicySet, fleet: Fleet) -> None:
    first = Clock().ledger()
    first.observe(policies, fleet, decided(fleet, r1=OUT, r3=OUT))
    again = Clock().ledger()
    again.read([as_line(event) for event in first.book.since(0)])
    told = again.observe(policies, fleet, decided(fleet, r1=BACK, r3=OUT))
    assert [(one.subject.engine, one.before, one.after) for one in told] == [
        ("r3", "", "UNHEALTHY"),
        ("r1", "UNHEALTHY", "HEALTHY"),
    ]
    assert told[1].evidence == "found at startup of the control plane: five good trial calls"
    assert again.observe(policies, fleet, decided(fleet, r1=BACK, r3=OUT)) == []


def test_removed_engines_have_no_startup_events(policies: PolicySet, fleet: Fleet) -> None:
    first = Clock().ledger()
    first.observe(policies, fleet, decided(fleet, r1=OUT))
    again = Clock().ledger()
    again.read([as_line(event).replace('"r1"', '"gone"') for event in first.book.since(0)])
    assert again.observe(policies, fleet, decided(fleet)) == []
