"""Judgements of an engine with data-parallel ranks: each rank must make progress."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.engine_judgement import EngineJudgement
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.probe_settings import PREFILL_STALL_S, ProbeSettings
from engine.probe_state import ProbeState
from engine.report import Verdict
from engine.vllm_metrics import RankCounters, VllmCounters

PROBE = ProbeSettings()
SILENT = ProbeFailure(trouble=ProbeFailureReason.SILENT, detail="no answer")
STEP_S = 0.25


class Engine:
    """An engine of some ranks, read every 0.25 s; ``hung`` ranks answer no canary and make no step."""

    def __init__(self, ranks: int = 2, *, partial: bool = False) -> None:
        self.at_s = 0.0
        self.judgement = EngineJudgement(books=ProbeState(slots=64))
        self.tokens = [10.0] * ranks
        self.work = [0] * ranks
        self.hung: set[int] = set()
        self.partial = partial
        self.sent_at_s: float | None = None

    def look(self, seconds: float) -> Verdict | None:
        """Read for so long; the verdict after it."""
        for _ in range(round(seconds / STEP_S)):
            self.at_s += STEP_S
            self._end_canary()
            for rank, work in enumerate(self.work):
                self.tokens[rank] += work if rank not in self.hung else 0
            self.judgement = self.judgement.after(self._reading(), PROBE)
            if self.judgement.wants_canary:
                self.judgement = self.judgement.canary_sent(self.at_s)
                self.sent_at_s = self.at_s
        return self.judgement.verdict

    def _end_canary(self) -> None:
        asked = self.judgement.books.asked_rank
        if self.sent_at_s is None:
            return
        if asked in self.hung:
            if self.at_s - self.sent_at_s < PROBE.timeout_s:
                return
            answer = CanaryReading(sent_at_s=self.sent_at_s, at_s=self.at_s, failure=SILENT)
        else:
            self.tokens[asked or 0] += 1
            answer = CanaryReading(sent_at_s=self.sent_at_s, at_s=self.sent_at_s + 0.01)
        self.sent_at_s = None
        self.judgement = self.judgement.after(answer, PROBE)

    def _reading(self) -> MetricsReading:
        held = sum(self.work) + (self.sent_at_s is not None)
        return MetricsReading(
            at_s=self.at_s,
            counters=VllmCounters(
                generation_tokens=sum(self.tokens),
                prompt_tokens=0,
                running=sum(self.work),
                waiting=0,
                first_tokens=sum(self.tokens),
                started_at_s=None if self.partial else 1.0,
                ranks=tuple(
                    RankCounters(rank=str(rank), running=work, waiting=0, steps=(("tokens", tokens),))
                    for rank, (work, tokens) in enumerate(zip(self.work, self.tokens, strict=True))
                ),
            ),
            in_flight=held,
            long_prompts=0,
            partial=self.partial,
        )


def working(ranks: int = 2, *, partial: bool = False) -> Engine:
    engine = Engine(ranks, partial=partial)
    engine.work = [3] * ranks
    assert engine.look(3.0) is Verdict.READY
    return engine


def test_hung_rank_under_load_is_hung_within_its_limit_and_named() -> None:
    engine = working()
    engine.hung = {1}
    assert engine.look(0.75) is Verdict.READY, "the limit of a decode has not passed"
    assert engine.look(0.5) is Verdict.HUNG
    assert engine.judgement.evidence.startswith("data-parallel rank 1: 3 requests in flight and no token for 1.")
    assert engine.judgement.evidence.endswith("1 of 2 ranks hung")
    report = engine.judgement.report("pool", "engine", engine.at_s, 1)
    assert report is not None
    assert (report.ranks, report.hung_ranks) == (("0", "1"), ("1",))
    engine.hung = set()
    assert engine.look(2 * STEP_S) is Verdict.READY


def test_partial_count_allows_a_prefill_on_the_rank() -> None:
    engine = working(partial=True)
    engine.hung = {0}
    assert engine.look(PREFILL_STALL_S - STEP_S) is not Verdict.HUNG
    assert engine.look(0.5) is Verdict.HUNG
    assert "(limit 3 s for a prefill)" in engine.judgement.evidence


def test_rank_that_hangs_while_idle_is_found_by_its_own_canary() -> None:
    engine = Engine(2)
    assert engine.look(2.0) is Verdict.READY
    engine.hung = {0}
    assert engine.look(3.0) is Verdict.HUNG
    assert "data-parallel rank 0: a probe, and no token for" in engine.judgement.evidence
    engine.hung = set()
    assert engine.look(3.0) is Verdict.READY


def test_outdated_gauge_of_a_working_rank_ejects_nothing() -> None:
    engine = working()
    before = engine.tokens[1]
    engine.work = [3, 0]
    for _ in range(40):
        # The gauge of rank 1 keeps its last value, as do its counters until its canary comes.
        now = engine._reading()
        assert isinstance(now.counters, VllmCounters)
        stale = replace(now.counters.ranks[1], running=3)
        engine.judgement = engine.judgement.after(
            replace(now, counters=replace(now.counters, ranks=(now.counters.ranks[0], stale))), PROBE
        )
        assert engine.judgement.verdict is not Verdict.HUNG
        if engine.judgement.wants_canary:
            engine.judgement = engine.judgement.canary_sent(engine.at_s)
            engine.sent_at_s = engine.at_s
        engine.at_s += STEP_S
        engine._end_canary()
        engine.tokens[0] += 3
    assert engine.tokens[1] > before, "it got canaries"


def test_two_hung_ranks_are_both_named() -> None:
    engine = working(4)
    engine.hung = {1, 3}
    engine.look(6.0)
    assert engine.judgement.evidence.endswith("2 of 4 ranks hung: 1, 3")


def test_engine_without_ranks_addresses_no_canary() -> None:
    engine = Engine(1)
    engine.look(3.0)
    assert engine.judgement.books.asked_rank is None
    assert engine.judgement.report("pool", "engine", 0.0, 1) is None or not engine.judgement.books.ranks


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(1, 12)), max_size=8),
    st.booleans(),
)
def test_ranks_that_answer_are_never_hung(story: list[tuple[list[int], int]], partial: bool) -> None:
    engine = Engine(3, partial=partial)
    for work, readings in story:
        engine.work = work
        for _ in range(readings):
            assert engine.look(STEP_S) is not Verdict.HUNG


@pytest.mark.parametrize("partial", [False, True])
@given(work=st.lists(st.integers(0, 9), min_size=3, max_size=3), hung=st.integers(0, 2), calm=st.integers(4, 20))
def test_hung_rank_is_always_found(work: list[int], hung: int, calm: int, partial: bool) -> None:
    engine = Engine(3, partial=partial)
    engine.work = work
    engine.look(calm * STEP_S)
    engine.hung = {hung}
    # Its turn among three canaries, their timeouts, and the limit.
    engine.look(3 * STEP_S + 3 * PROBE.timeout_s + PREFILL_STALL_S + 1.0)
    assert engine.judgement.verdict is Verdict.HUNG
    assert engine.judgement.finding is not None
    if len([one for one in work if one]) > 1 or not work[hung]:
        assert engine.judgement.finding.hung_ranks == (str(hung),)
