"""Totals only grow and count each call once, by its result."""

import pytest

from policies.route import PriorityClass
from xds_server.model.pool_traffic import CallResult
from xds_server.telemetry.attempt_outcome import AttemptOutcome
from xds_server.telemetry.pool_directory import PoolFacts
from xds_server.telemetry.pool_totals import PoolTotals, call_result, families
from xds_server.telemetry.traffic_store import Attempt, TrafficStore


def facts(*, hedged: bool = False) -> PoolFacts:
    return PoolFacts(
        name="chat", at={}, behind={}, by_zone={}, zone_of={"e": ""}, window_calls=10, count_statuses=frozenset(),
        fewest=1, hedged=hedged, priority=PriorityClass.INTERACTIVE, gpus_per_slot={"e": 0.5},
    )  # fmt: skip


class TotalsFixture:
    def __init__(self, *, hedged: bool = False) -> None:
        self.book = TrafficStore()
        self.facts = facts(hedged=hedged)

    def call(
        self,
        outcome: AttemptOutcome,
        *,
        first: bool = True,
        complete: bool = True,
        asks: bool = True,
        weight: float = 1,
    ) -> None:
        attempt = Attempt(
            engine="e", outcome=outcome, first=first, asks=asks, complete=complete,
            priority=PriorityClass.INTERACTIVE, streaming=False, duration_s=4.0, first_byte_s=1.0,
        )  # fmt: skip
        self.book.record_attempt("n", self.facts, attempt, weight=weight, now_s=100.0)

    @property
    def totals(self) -> PoolTotals:
        return self.book.totals()["chat"]


@pytest.mark.parametrize(
    ("outcome", "complete", "asks", "became"),
    [
        (AttemptOutcome.SUCCESS, True, True, "success"),
        (AttemptOutcome.FAILURE, False, True, "failure"),
        (AttemptOutcome.NEUTRAL, True, True, "shed"),
        (AttemptOutcome.NEUTRAL, True, False, "rejected"),
        (AttemptOutcome.NEUTRAL, False, True, "abandoned"),
    ],
)
def test_call_results(outcome: AttemptOutcome, complete: bool, asks: bool, became: str) -> None:
    assert call_result(outcome, complete=complete, asks=asks) == became
    told = TotalsFixture()
    told.call(outcome, complete=complete, asks=asks, weight=2)
    assert told.totals.attempts == {**dict.fromkeys(CallResult, 0.0), became: 2}
    assert told.totals.gpu_s[became] == 2 * 4.0 * 0.5, "its share of the engine's GPUs, times its weight"


def test_retried_request_is_one_request_and_two_calls() -> None:
    told = TotalsFixture()
    told.call(AttemptOutcome.FAILURE)
    told.call(AttemptOutcome.SUCCESS, first=False)
    assert told.totals.requests[PriorityClass.INTERACTIVE] == 1
    assert told.totals.retries == 1
    assert sum(told.totals.attempts.values()) == 2


def test_request_refused_at_the_ceiling_is_not_a_call() -> None:
    told = TotalsFixture()
    told.call(AttemptOutcome.NOT_SENT)
    told.book.record_shed("n", told.facts, PriorityClass.BATCH, weight=3, now_s=100.0)
    assert told.totals.requests == {PriorityClass.INTERACTIVE: 1, PriorityClass.BATCH: 3}
    assert told.totals.refused == {PriorityClass.INTERACTIVE: 1, PriorityClass.BATCH: 3}
    assert sum(told.totals.attempts.values()) == 0


@pytest.mark.parametrize(("hedged", "ended"), [(False, 1), (True, 0)])
def test_refused_retry_ends_its_request_unless_hedged(hedged: bool, ended: int) -> None:
    told = TotalsFixture(hedged=hedged)
    told.call(AttemptOutcome.NOT_SENT, first=False)
    assert told.totals.refused[PriorityClass.INTERACTIVE] == ended
    assert told.totals.requests[PriorityClass.INTERACTIVE] == 0


def test_route_timeout_is_counted_with_its_call() -> None:
    told = TotalsFixture()
    told.call(AttemptOutcome.NEUTRAL, complete=False)
    told.book.record_failure(told.facts, "e", weight=1, now_s=100.0)
    assert (told.totals.timed_out, told.totals.attempts["failure"]) == (1, 0)


def test_newest_call_start_time() -> None:
    told = TotalsFixture()
    assert told.book.began_at_s("chat", "e") is None
    told.call(AttemptOutcome.SUCCESS)
    assert told.book.began_at_s("chat", "e") == 96.0
    assert told.book.began_at_s("chat", "e9") is None


def test_every_pool_has_every_series_at_startup() -> None:
    names = {
        (sample.name, sample.labels.get("outcome"))
        for family in families({"chat": PoolTotals()})
        for sample in family.samples
    }
    assert {("switchgear_attempts_total", one) for one in CallResult} <= names
