"""The pace of engines: a slowdown is known from tokens, or canaries, before slow calls end."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import CanaryResults, EngineReport, ReportSource, Verdict
from xds_server.decide.admission.token_pace import (
    CONFIRM_S,
    MOST,
    CallsLately,
    confirmed,
    has_new_pace,
    next_token_pace,
)
from xds_server.decide.decision_memory import PastSpeed, TokenPace
from xds_server.decide.recent_work import RecentWork
from xds_server.model.fleet import Engine, EngineId

SLOTS = 8
EACH_S = 0.9
USUAL = 120.0
QUIET = PastSpeed(canary_s=0.01, canaries=20)


def calls(expected: float, ended: int) -> CallsLately:
    return CallsLately(work=RecentWork(work_s=expected * 0.5, ended=ended, span_s=0.5), service_s=0.5)


class Looked:
    """One engine of eight slots whose agent reports about each second."""

    def __init__(self) -> None:
        self.pace: TokenPace | None = None
        self.now_s = 100.0

    def report(self, rate: float = USUAL, running: int = SLOTS, **fields: Any) -> Engine:
        said: dict[str, Any] = {
            "verdict": Verdict.READY, "observed_at_s": self.now_s, "requests_in_flight": running,
            "requests_waiting": 0, "tokens_per_s": rate * running, "source": ReportSource.AGENT, **fields,
        }  # fmt: skip
        return Engine(
            id=EngineId("pool", "e0"), address="10.0.0.1", port=8000, zone="", region="", slots=SLOTS, weight=1,
            tensor_parallel_group="", labels={}, received_at_s=self.now_s,
            report=EngineReport(pool="pool", engine="e0", evidence="", **said),
        )  # fmt: skip

    def look(self, rate: float = USUAL, *, lately: CallsLately | None = None, **fields: Any) -> float:
        """The slowdown after a report of ``rate`` tokens per second and running request."""
        self.now_s += EACH_S
        engine = self.report(rate, **fields)
        if has_new_pace(self.pace, engine, self.now_s):
            self.pace = next_token_pace(self.pace, engine, QUIET, lately, self.now_s)
        return 1.0 if self.pace is None else self.pace.slowdown

    def usual(self, reports: int = 6, **fields: Any) -> "Looked":
        for _ in range(reports):
            assert self.look(**fields) == 1
        return self


def test_slowdown_that_calls_confirm_is_known_with_the_first_report() -> None:
    assert Looked().usual().look(USUAL / 10, lately=calls(8, 1)) == pytest.approx(10)


def test_calls_confirm_between_reports() -> None:
    engine = Looked().usual()
    assert engine.look(USUAL / 10) == 1
    assert engine.pace is not None
    assert confirmed(engine.pace, calls(2, 0), engine.now_s) is engine.pace  # too few calls prove nothing
    assert confirmed(engine.pace, calls(8, 0), engine.now_s).slowdown == pytest.approx(10)
    assert confirmed(engine.pace, calls(8, 8), engine.now_s) == replace(engine.pace, asked=None)


def test_slowdown_without_calls_must_last() -> None:
    engine = Looked().usual()
    assert (engine.look(USUAL / 3), engine.look(USUAL / 3)) == (1, pytest.approx(3))
    assert EACH_S > CONFIRM_S


def test_calls_that_keep_their_pace_outweigh_tokens() -> None:
    engine = Looked().usual()
    assert [engine.look(USUAL / 3, lately=calls(8, 8)) for _ in range(5)] == [1] * 5


def test_new_slowdown_grows_with_the_next_report() -> None:
    """The first report still covers half of the time before."""
    engine = Looked().usual()
    assert engine.look(USUAL / 2, lately=calls(8, 3)) == pytest.approx(2)
    assert engine.look(USUAL / 10) == pytest.approx(10)


def test_recovery_is_known_with_two_reports() -> None:
    engine = Looked().usual()
    engine.look(USUAL / 10, lately=calls(8, 0))
    for _ in range(5):
        assert engine.look(USUAL / 10) == pytest.approx(10)
    assert (engine.look(), engine.look()) == (pytest.approx(10), 1)


def test_lasting_slowdown_stays_known() -> None:
    engine = Looked().usual()
    engine.look(USUAL / 4, lately=calls(8, 0))
    assert [engine.look(USUAL / 4) for _ in range(300)] == [pytest.approx(4)] * 300
    assert [engine.look(), engine.look()] == [pytest.approx(4), 1]


def test_idle_engine_is_measured_by_new_canaries() -> None:
    engine = Looked().usual()

    def slow() -> CanaryResults:
        return CanaryResults(in_row=5, took_s=0.1, at_s=engine.now_s + EACH_S)

    first = slow()
    assert engine.look(running=0, canary=first) == 1
    assert [engine.look(running=0, canary=first) for _ in range(3)] == [1] * 3  # the same one proves no more
    assert engine.look(running=0, canary=slow()) == pytest.approx(10)


def test_larger_batch_than_ever_is_not_a_slowdown() -> None:
    engine = Looked().usual(running=1)
    assert [engine.look(USUAL / 2, running=4) for _ in range(5)] == [1] * 5


@pytest.mark.parametrize(
    "fields", [{"source": ReportSource.PROBE}, {"verdict": Verdict.HUNG}, {"observed_at_s": 50.0}]
)
def test_other_reports_tell_no_pace(fields: dict[str, Any]) -> None:
    engine = Looked().usual()
    assert [engine.look(USUAL / 10, lately=calls(8, 0), **fields) for _ in range(3)] == [1] * 3


@given(st.lists(st.tuples(st.floats(USUAL / 1.2, USUAL * 1.2), st.integers(0, SLOTS)), max_size=30))
def test_noise_is_never_a_slowdown(seen: list[tuple[float, int]]) -> None:
    engine = Looked().usual()
    assert all(engine.look(rate, running=running) == 1 for rate, running in seen)


@given(st.lists(st.floats(0, 10 * USUAL), max_size=30))
def test_slowdown_is_bounded(rates: list[float]) -> None:
    engine = Looked().usual()
    assert all(1 <= engine.look(rate, lately=calls(8, 1)) <= MOST for rate in rates)
