"""Judgements as a function of readings: stories first, then what holds for every story."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.engine_judgement import CONFIRM_S, EJECTED_INTERVAL_S, EngineJudgement
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.probe_settings import PREFILL_STALL_S, ProbeSettings
from engine.probe_state import RECOVERED_CANARIES, ProbeState
from engine.report import PREFILL_READING, STANDSTILL_READING, Doubt, Verdict
from engine.vllm_metrics import RankCounters, VllmCounters

PROBE = ProbeSettings()
SLOTS = 8
SHED = ProbeFailure(trouble=ProbeFailureReason.STATUS, status=503, detail="HTTP 503: busy")
GONE = ProbeFailure(trouble=ProbeFailureReason.REFUSED, detail="connection refused")
SILENT = ProbeFailure(trouble=ProbeFailureReason.SILENT, detail="no answer")
OURS = ProbeFailure(trouble=ProbeFailureReason.OURS, detail="late")
DRAINING = ProbeFailure(
    trouble=ProbeFailureReason.STATUS, status=500, detail="cannot schedule new futures after shutdown"
)
KEYLESS = ProbeFailure(trouble=ProbeFailureReason.STATUS, status=401, detail="Unauthorized")
WRONG = ProbeFailure(trouble=ProbeFailureReason.STATUS, status=404, detail="no such model")
ERROR = ProbeFailure(trouble=ProbeFailureReason.STATUS, status=500, detail="CUDA error")
CUT = ProbeFailure(trouble=ProbeFailureReason.CUT, detail="reset")


def look(
    at_s: float, tokens: float = 100.0, running: int = 0, waiting: int = 0, load: int | None = -1
) -> MetricsReading:
    """Counters in which every token is some request's first; ``load`` -1 is what the gauges say."""
    return MetricsReading(
        at_s=at_s,
        counters=VllmCounters(
            generation_tokens=tokens, prompt_tokens=0, running=running, waiting=waiting, first_tokens=tokens
        ),
        in_flight=running + waiting if load == -1 else load,
    )


def told(
    readings: Iterable[MetricsReading | CanaryReading | float], start: EngineJudgement | None = None
) -> EngineJudgement:
    """The judgement after these readings; a bare number is the moment a canary is sent."""
    judgement = start or EngineJudgement(books=ProbeState(slots=SLOTS))
    for reading in readings:
        judgement = (
            judgement.canary_sent(reading) if isinstance(reading, float) else judgement.after(reading, PROBE)
        )
    return judgement


def token(sent_at_s: float) -> CanaryReading:
    return CanaryReading(sent_at_s=sent_at_s, at_s=sent_at_s + 0.01)


def ended(sent_at_s: float, failure: ProbeFailure) -> CanaryReading:
    return CanaryReading(sent_at_s=sent_at_s, at_s=sent_at_s + 0.01, failure=failure)


READY = told([look(0.0), 0.0, token(0.0)])
# First tokens in each reading, and prompts that wait; one step of LONG_STEP took 0.8 s.
SHORT_PROMPTS = [look(at / 5, 4 * at + 1, 2, 2) for at in range(1, 26)]
LONG_STEP = [
    *SHORT_PROMPTS[:20],
    look(4.3, 81, 2, 2),
    *(look(at / 5 + 0.6, 4 * at + 1, 2, 2) for at in range(21, 26)),
]
HUNG_IDLE: list[MetricsReading | CanaryReading | float] = [
    look(0.5),
    0.5,
    look(0.7, load=1),
    CanaryReading(sent_at_s=0.5, at_s=1.5, failure=SILENT),
    look(1.5),
]


@pytest.mark.parametrize(
    ("readings", "verdict"),
    [
        ([look(0.5, 101), 0.5, token(0.5)], Verdict.READY),
        ([look(0.5, 200, running=8, waiting=3)], Verdict.BUSY),
        ([look(0.5, 200, running=8)], Verdict.BUSY),
        (HUNG_IDLE, Verdict.HUNG),
        # Canaries time out behind a queue while counters move: busy.
        (
            [look(0.5, 200, 2), 0.5, CanaryReading(sent_at_s=0.5, at_s=1.5, failure=SILENT), look(1.6, 300, 2)],
            Verdict.BUSY,
        ),
        # Gauges frozen at work.
        ([look(0.5, 200, 8), look(1.0, 200, 8), 1.0, look(1.6, 200, 8, load=9)], Verdict.HUNG),
        # Gauges frozen at nothing; only the engine's own count rises. The first request may be a long prefill.
        ([look(0.5, load=0), 0.5, look(0.55, load=3), look(2.0, load=4)], Verdict.READY),
        ([look(0.5, load=0), 0.5, look(0.55, load=3), look(3.6, load=4)], Verdict.HUNG),
        # The canary was already late when they came.
        ([look(0.5, load=0), 0.5, look(0.8, load=1), look(1.0, load=3), look(1.5, load=4)], Verdict.HUNG),
        # Arrivals after the last step do not explain the standstill; a prompt before it does.
        ([look(0.5, 200, 2), look(1.0, 200, 2, load=9), 1.0, look(1.6, 200, 2, load=9)], Verdict.HUNG),
        ([look(0.5, 200, 2, load=2), look(0.7, 201, 2, load=4), 0.7, look(1.8, 201, 2, load=5)], Verdict.BUSY),
        # The same counters, but a token came: the gauge is stuck, the engine is not.
        ([look(0.5, 200, 3), look(1.0, 200, 3), 1.0, token(1.0), look(2.0, 200, 3)], Verdict.READY),
        ([MetricsReading(at_s=0.5, counters=GONE)], Verdict.DEAD),
        ([look(0.5), 0.5, ended(0.5, GONE)], Verdict.DEAD),
        ([MetricsReading(at_s=0.9, counters=SILENT)], Verdict.READY),  # too early to judge
        # An overloaded API process leaves its counters unread for seconds; that is not death.
        ([MetricsReading(at_s=0.9, counters=SILENT), MetricsReading(at_s=4.5, counters=SILENT)], Verdict.READY),
        ([MetricsReading(at_s=0.9, counters=SILENT), MetricsReading(at_s=5.5, counters=SILENT)], Verdict.DEAD),
        ([look(0.5), 0.5, ended(0.5, SHED)], Verdict.BUSY),
        ([look(0.5, 200, 8, 8), 0.5, ended(0.5, SHED), look(1.0, 300, 8, 8)], Verdict.BUSY),
        # Full, shedding, and nothing moves: what it says does not outweigh what it does.
        ([look(0.5, 200, 8), 0.5, ended(0.5, SHED), look(1.0, 200, 8), look(2.1, 200, 8)], Verdict.HUNG),
        ([look(0.5), 0.5, ended(0.5, SHED), look(1.0), 1.0, ended(1.0, SHED), look(1.6)], Verdict.DEGRADED),
        ([look(0.5), 0.5, ended(0.5, DRAINING)], Verdict.DRAINING),
        ([look(0.5), 0.5, ended(0.5, WRONG)], Verdict.MISCONFIGURED),
        ([look(0.5), 0.5, ended(0.5, KEYLESS), look(1.0, 200, 3)], Verdict.MISCONFIGURED),
        ([look(0.5), 0.5, ended(0.5, ERROR)], Verdict.DEGRADED),
        ([look(0.5), 0.5, ended(0.5, CUT)], Verdict.READY),
        ([look(0.5), 0.5, ended(0.5, CUT), look(0.6), 0.6, ended(0.6, CUT)], Verdict.DEGRADED),
        ([look(0.5), 0.5, CanaryReading(sent_at_s=0.5, at_s=3.0, failure=OURS), look(3.0)], Verdict.READY),
        # A canary token from before the engine stopped does not prove life after it.
        (
            [
                look(0.5),
                0.5,
                token(0.5),
                1.0,
                look(1.2, 101, load=1),
                CanaryReading(sent_at_s=1.0, at_s=2.0, failure=SILENT),
                look(2.0, 101),
            ],
            Verdict.HUNG,
        ),
        # A restart: counters begin again, and a token counts as ever.
        ([look(0.5, 3.0), 0.5, token(0.5)], Verdict.READY),
    ],
)
def test_stories_of_an_engine_that_was_ready(
    readings: list[MetricsReading | CanaryReading | float], verdict: Verdict
) -> None:
    judgement = told(readings, READY)
    assert judgement.verdict is verdict, judgement.evidence
    assert judgement.evidence


def test_refused_probe_is_misconfigured_before_the_first_token() -> None:
    judgement = told([look(0.0, tokens=0), 0.0, ended(0.0, KEYLESS)])
    assert (judgement.verdict, judgement.doubt) == (Verdict.MISCONFIGURED, Doubt.REFUSED)
    assert "API key" in judgement.evidence


def test_pause_by_order_replaces_hung_and_restarts_the_stall_when_it_ends() -> None:
    paused = told([*HUNG_IDLE[:-1], replace(look(1.5), pause="asleep")], READY)
    assert (paused.verdict, paused.doubt) == (Verdict.PAUSED, None)
    assert "asleep by order" in paused.evidence
    assert told([look(2.0)], paused).verdict is Verdict.PAUSED, "not asked this time"
    resumed = told([replace(look(2.0), pause="")], paused)
    assert resumed.verdict is Verdict.PAUSED, "its first token may take a moment"
    assert told([look(2.2, 101)], resumed).verdict is Verdict.READY
    assert told([look(3.1)], resumed).verdict is Verdict.HUNG


@pytest.mark.parametrize("failure", [SHED, ERROR])
def test_an_engine_that_never_made_a_token_is_starting(failure: ProbeFailure) -> None:
    assert told([look(0.0, tokens=0), 0.0, ended(0.0, failure)]).verdict is Verdict.STARTING


def test_a_long_prefill_of_someone_else_has_stall_after() -> None:
    patient = ProbeSettings(stall_after_s=10.0)
    judgement = READY
    for at_s in range(1, 9):
        judgement = judgement.after(look(float(at_s), 100, running=1), patient)
        if judgement.wants_canary:
            judgement = judgement.canary_sent(float(at_s))
        judgement = judgement.after(CanaryReading(sent_at_s=at_s, at_s=at_s + 0.9, failure=SILENT), patient)
        assert judgement.verdict is Verdict.READY


def test_possible_local_faults_are_marked() -> None:
    refused: list[MetricsReading | CanaryReading | float] = [look(0.5), 0.5, ended(0.5, WRONG)]
    assert told(refused, READY).doubt is Doubt.REFUSED
    assert told([MetricsReading(at_s=at_s, counters=SILENT) for at_s in (0.5, 5.5)], READY).doubt is Doubt.SILENT
    assert told(HUNG_IDLE, READY).doubt is None


def test_no_canary_behind_queued_work_nor_to_a_dead_engine() -> None:
    assert told([look(0.5)], READY).wants_canary
    assert told([look(0.5, 200, running=3)], READY).wants_canary
    assert not told([look(0.5, 200, running=8)], READY).wants_canary
    assert told([look(0.5, 200, 8), look(1.0, 200, 8)], READY).wants_canary, (
        "no progress: a canary disturbs no request"
    )
    assert not told([MetricsReading(at_s=0.5, counters=GONE)], READY).wants_canary
    assert not told([look(0.5), 0.5], READY).wants_canary


def test_failed_probe_is_confirmed_soon_and_ejected_engines_are_probed_often() -> None:
    assert READY.pause_s(0.1, PROBE) == PROBE.interval_s
    once = told([MetricsReading(at_s=0.5, counters=GONE)], READY)
    assert once.pause_s(0.5, PROBE) == CONFIRM_S
    twice = told([MetricsReading(at_s=0.6, counters=GONE)], once)
    assert twice.pause_s(0.6, PROBE) == EJECTED_INTERVAL_S


def answered(judgement: EngineJudgement, sent_at_s: float, took_s: float) -> EngineJudgement:
    return judgement.canary_sent(sent_at_s).after(
        CanaryReading(sent_at_s=sent_at_s, at_s=sent_at_s + took_s), PROBE
    )


def test_degraded_engine_is_probed_often_until_it_recovers() -> None:
    usual = answered(READY, 0.5, 0.01)
    assert not answered(usual, 1.0, 0.045).books.recovering, "noise"
    slow = answered(usual, 1.0, 0.5)
    assert slow.books.recovering
    assert slow.pause_s(1.5, PROBE) == EJECTED_INTERVAL_S
    for number in range(RECOVERED_CANARIES):
        assert slow.books.recovering
        slow = answered(slow, 2.0 + number / 4, 0.02)
    assert not slow.books.recovering
    for number in range(2000):
        slow = answered(slow, 10.0 + number / 4, 0.5)
    assert not slow.books.recovering, "slow for minutes is what is usual now"


def test_unobserved_time_does_not_count_as_evidence() -> None:
    asleep = MetricsReading(at_s=60.0, counters=look(60.0).counters, late=True)
    assert told([look(0.5), 0.5, asleep], READY).verdict is Verdict.READY


# -- for every story ------------------------------------------------------------------------------------------

FAILURES = st.sampled_from([SHED, GONE, SILENT, OURS, DRAINING, WRONG, ERROR, CUT])
STEPS = st.lists(
    st.tuples(
        st.floats(0.001, 3.0),
        st.one_of(
            st.builds(
                lambda tokens, running, waiting, load: (tokens, running, waiting, load),
                st.integers(-500, 500),
                st.integers(0, 20),
                st.integers(0, 50),
                st.none() | st.integers(0, 60),
            ),
            FAILURES,
        ),
        st.none() | FAILURES | st.just("token"),
    ),
    max_size=40,
)


@settings(deadline=None)  # a slow machine must not fail it
@given(STEPS)
def test_every_story_has_sane_ends(steps: list[tuple[float, object, object]]) -> None:
    judgement, at_s, tokens = EngineJudgement(books=ProbeState(slots=SLOTS)), 0.0, 1000.0
    for pause_s, seen, canary in steps:
        at_s += pause_s
        if isinstance(seen, ProbeFailure):
            judgement = judgement.after(MetricsReading(at_s=at_s, counters=seen), PROBE)
            if seen.gone:
                assert judgement.verdict is Verdict.DEAD
            moved = False
        else:
            assert isinstance(seen, tuple)
            change, running, waiting, load = seen
            moved = change > 0 and judgement.books.counters is not None
            tokens = max(0.0, tokens + change)
            judgement = judgement.after(look(at_s, tokens, running, waiting, load), PROBE)
        if moved:
            assert judgement.verdict is not Verdict.HUNG or not judgement.fresh, "hung while tokens advance"
        if judgement.wants_canary and canary is not None:
            judgement = judgement.canary_sent(at_s)
            failure = canary if isinstance(canary, ProbeFailure) else None
            judgement = judgement.after(CanaryReading(sent_at_s=at_s, at_s=at_s + 0.01, failure=failure), PROBE)
            if failure is None:
                assert judgement.verdict is not None
                assert judgement.verdict.good, "a token is a token"
        assert 0 < judgement.pause_s(at_s, PROBE) <= PROBE.interval_s
        assert (judgement.bad_in_row == 0) or (judgement.good_in_row == 0)
        report = judgement.report("pool", "engine", at_s, 1)
        assert (report is not None) == (judgement.fresh and judgement.verdict is not None)
        assert report is None or report.evidence


@settings(deadline=None)  # a slow machine must not fail it
@given(
    st.lists(st.tuples(st.floats(0.01, 0.5), st.integers(1, 500), st.integers(8, 64)), min_size=1, max_size=40),
    st.booleans(),
)
def test_engine_with_advancing_tokens_is_never_hung(story: list[tuple[float, int, int]], asked: bool) -> None:
    judgement, at_s, tokens = READY, 0.0, 100.0
    if asked:
        judgement = judgement.canary_sent(0.0)
    for pause_s, more, load in story:
        at_s, tokens = at_s + pause_s, tokens + more
        judgement = judgement.after(look(at_s, tokens, min(load, SLOTS), max(0, load - SLOTS), load), PROBE)
        assert judgement.verdict is not None
        assert judgement.verdict.good


@settings(deadline=None)  # a slow machine must not fail it
@given(st.integers(0, 64), st.floats(0.05, 0.5), st.booleans())
def test_every_stalled_engine_is_detected(load: int, interval_s: float, counted: bool) -> None:
    """Whatever its gauges froze at, and whether or not it counts its calls; any first request may be a prefill."""
    judgement, at_s, sent_at_s = READY, 0.0, None
    bound_s = (PROBE.timeout_s if counted and not load else PREFILL_STALL_S) + 3 * PROBE.interval_s
    while at_s < 10:
        at_s += interval_s
        if sent_at_s is not None and at_s >= sent_at_s + PROBE.timeout_s:
            judgement = judgement.after(CanaryReading(sent_at_s=sent_at_s, at_s=at_s, failure=SILENT), PROBE)
            sent_at_s = None
        own = 0 if sent_at_s is None else 1
        seen = look(at_s, 100, min(load, SLOTS), max(0, load - SLOTS), load + own if counted else None)
        judgement = judgement.after(seen, PROBE)
        if judgement.verdict is Verdict.HUNG:
            break
        if judgement.wants_canary:
            sent_at_s = at_s
            judgement = judgement.canary_sent(at_s)
    assert judgement.verdict is Verdict.HUNG
    assert at_s <= bound_s + 2 * interval_s


def asked_for(
    count: int, start: EngineJudgement, at_s: float, failure: ProbeFailure | None = None
) -> EngineJudgement:
    """The judgement after ``count`` canaries, one each second, with the same result."""
    for number in range(count):
        sent_at_s = at_s + number
        start = told(
            [
                look(sent_at_s),
                sent_at_s,
                CanaryReading(sent_at_s=sent_at_s, at_s=sent_at_s + 0.02, failure=failure),
            ],
            start,
        )
    return start


def test_canaries_are_counted_in_a_row_with_what_the_last_good_one_took() -> None:
    three = asked_for(2, READY, 1.0).books.canary
    assert three is not None
    assert (three.in_row, three.at_s, round(three.took_s, 3)) == (3, 2.02, 0.02)
    assert asked_for(1, asked_for(2, READY, 1.0), 3.0, SHED).books.canary == three, "turned away for want of room"
    assert asked_for(1, asked_for(2, READY, 1.0), 3.0, OURS).books.canary == three
    failed = asked_for(1, asked_for(2, READY, 1.0), 3.0, ERROR)
    assert failed.books.canary is not None
    assert (failed.books.canary.in_row, failed.books.canary.at_s) == (0, 2.02)
    again = asked_for(1, failed, 4.0).books.canary
    assert again is not None
    assert again.in_row == 1


def test_failed_engine_is_probed_often_until_it_has_proved_itself() -> None:
    well = asked_for(1, asked_for(1, READY, 1.0, ERROR), 2.0)
    assert well.verdict is Verdict.READY
    assert well.pause_s(2.02, PROBE) == EJECTED_INTERVAL_S
    assert asked_for(RECOVERED_CANARIES, well, 3.0).pause_s(30.0, PROBE) == PROBE.interval_s


@pytest.mark.parametrize(("long_prompts", "limit_s"), [(0, 1.0), (1, PREFILL_STALL_S)])
@pytest.mark.parametrize("busy", [True, False])
def test_short_prompts_do_not_lengthen_the_stall_limit(long_prompts: int, limit_s: float, busy: bool) -> None:
    """The gate knows whether a long prompt waits; otherwise each arrival may be one."""

    def seen(at_s: float, tokens: float, long: int = long_prompts) -> MetricsReading:
        running = 2 if tokens > 100 or at_s >= 1 else 0
        return replace(look(at_s, tokens, running=running, load=running), long_prompts=long if running else 0)

    now = told([seen(0.0, 100, 0), 0.0, token(0.0), seen(0.5, 200 if busy else 100)])
    assert now.verdict is Verdict.READY
    for step in range(10 * round(PREFILL_STALL_S) + 10):
        at_s = 1.0 + 0.1 * step
        now = now.after(seen(at_s, 200 if busy else 100), PROBE)
        # Requests that came to an idle engine may still be answered by it: a canary would tell.
        assert now.books.stalled_since_s is not None
        assert now.books.stall_limit_s(PROBE) == limit_s


def test_prefill_step_may_take_three_seconds_more_than_the_longest_before() -> None:
    def seen(at_s: float, tokens: float, load: int = 2) -> MetricsReading:
        return replace(look(at_s, tokens, running=1, load=load), long_prompts=1)

    # Steps of a real engine on a loaded machine: 2.6 s, then 5.4 s.
    now = told([look(0.0, 100), 0.0, token(0.0), seen(0.5, 100, 1), seen(3.1, 2148, 1)])
    now = now.canary_sent(3.2).after(seen(8.4, 2148), PROBE)
    assert now.verdict is Verdict.READY
    now = now.after(seen(8.8, 2148), PROBE)
    assert now.verdict is Verdict.HUNG
    assert "(limit 5.6 s for a prefill: 3 s + longest step of this prompt, 2.6 s)" in now.evidence
    report = now.report("pool", "e0", 8.8, 1)
    assert report is not None
    assert (report.reasons[0].reading, report.reasons[0].age_s) == (PREFILL_READING, pytest.approx(5.7))


def prefill_step(at_s: float, step: int, prompts: int = 0, more: int = 0) -> MetricsReading:
    """A reading of an engine with one running request, ``more`` others and this many prefill steps so far."""
    reading = look(at_s, 100, running=1, load=1 + more)
    assert isinstance(reading.counters, VllmCounters)
    ranks = (RankCounters(rank="0", running=1, waiting=0, steps=(("kv", float(step)),)),)
    return replace(reading, counters=replace(reading.counters, prompt_tokens=prompts, ranks=ranks))


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize(
    ("others", "ended", "limit_s"),
    [
        pytest.param(0, False, 3.9, id="the only prompt"),
        # Its prefix may be cached, so its first step may be as long as any.
        pytest.param(1, False, 5.6, id="another prompt waits"),
        pytest.param(0, True, 5.6, id="the prompt has ended"),
    ],
)
def test_limit_of_a_prefill_follows_the_steps_of_its_prompt(
    gate: bool, others: int, ended: bool, limit_s: float
) -> None:
    def seen(at_s: float, step: int, prompts: int = 0, more: int = 0) -> MetricsReading:
        return replace(prefill_step(at_s, step, prompts, more), long_prompts=1 + more if gate else None)

    # An earlier prompt: a step of 2.6 s. Then steps of 0.9 s.
    now = told([look(0.0, 100), 0.0, token(0.0), seen(0.5, 0), seen(1.0, 0), seen(3.1, 1), look(3.2, 200)])
    assert now.books.longest_step_s == pytest.approx(2.6)
    now = told([seen(4.0, 2, 200), seen(4.5, 2, 200), seen(4.9, 3, 200), seen(5.4, 3, 200)], now)
    assert now.books.stall_limit_s(PROBE) == pytest.approx(3.9)
    now = now.after(seen(5.8, 4, 300 if ended else 200, others), PROBE)
    assert now.books.stall_limit_s(PROBE) == pytest.approx(limit_s)


@pytest.mark.parametrize(("pause_s", "limit_s"), [(5.0, 5.5), (61.0, 3.9)])
def test_uneven_steps_lengthen_the_limit_for_a_minute(pause_s: float, limit_s: float) -> None:
    """A machine that stalls, as under foreign load: a chunk of 2.5 s after one of 0.5 s."""
    now = told([look(0.0, 100), 0.0, token(0.0), prefill_step(0.5, 0), prefill_step(1.0, 1)])
    now = told([prefill_step(1.5, 2), prefill_step(2.0, 2), prefill_step(4.0, 3), look(4.1, 200)], now)
    # The next prompt has chunks of 0.9 s.
    at_s = 4.0 + pause_s
    now = told([look(at_s, 200), prefill_step(at_s + 0.4, 4, 9), prefill_step(at_s + 0.9, 4, 9)], now)
    now = told(
        [prefill_step(at_s + 1.3, 5, 9), prefill_step(at_s + 1.8, 5, 9), prefill_step(at_s + 2.2, 6, 9)], now
    )
    assert now.books.prompt_step_s == pytest.approx(0.9)
    assert now.books.stall_limit_s(PROBE) == pytest.approx(limit_s)


def test_canary_given_up_is_not_another_prompt() -> None:
    """The engine drops it at its next step, so it still waits when the present one ends."""
    now = told([look(0.0, 100), 0.0, token(0.0), prefill_step(0.5, 0), prefill_step(1.0, 0), prefill_step(1.4, 1)])
    assert now.books.stall_limit_s(PROBE) == pytest.approx(3.9)
    now = told([1.5, prefill_step(2.0, 1, more=1), ended(1.5, SILENT), prefill_step(2.6, 2, more=1)], now)
    assert now.books.asked_at_s is None
    assert now.books.prompt_step_s == pytest.approx(1.2)


@pytest.mark.parametrize(("partial", "verdict"), [(True, Verdict.READY), (False, Verdict.HUNG)])
def test_prompt_held_by_another_api_process_is_not_a_hang(partial: bool, verdict: Verdict) -> None:
    """Its first chunk takes 2.5 s. Until then gauges and the count of this process are 0."""

    def seen(at_s: float, load: int = 0) -> MetricsReading:
        return replace(look(at_s, 100, load=load), partial=partial)

    # This process once had a request, so its count works.
    now = told([seen(0.0, 1), seen(0.2), 0.2, token(0.2), seen(0.5), 0.5, seen(1.4)])
    now = told([CanaryReading(sent_at_s=0.5, at_s=1.5, failure=SILENT), seen(1.6), 1.6, seen(2.5)], now)
    assert now.verdict is verdict
    if partial:
        assert told([seen(3.6)], now).verdict is Verdict.HUNG


def test_slow_idle_engine_is_not_hung_within_twenty_usual_canaries() -> None:
    """Counted and idle; its canaries usually take 100 ms, so one of 1.5 s is slow, and 2 s are a hang."""
    usual = told([look(0.0, load=1), look(0.1, load=0), 0.1, CanaryReading(sent_at_s=0.1, at_s=0.2)])
    assert usual.books.canary_limit_s(PROBE) == pytest.approx(2.0)
    waiting = told([look(0.5), 0.5, look(1.0, load=1), look(1.9, load=1)], usual)
    assert waiting.verdict is Verdict.READY
    assert told([CanaryReading(sent_at_s=0.5, at_s=2.0), look(2.1, 101)], waiting).verdict is Verdict.READY
    assert told([look(2.6, load=1)], waiting).verdict is Verdict.HUNG


def test_short_probe_timeout_grows_with_usual_canaries() -> None:
    books = ProbeState(slots=SLOTS, usual_canary_s=0.015)
    assert books.canary_limit_s(ProbeSettings(timeout_s=0.1)) == pytest.approx(0.3)
    assert books.canary_limit_s(ProbeSettings()) == 1.0
    assert replace(books, usual_canary_s=1.0).canary_limit_s(ProbeSettings()) == 5.0
    assert ProbeState(slots=SLOTS).canary_limit_s(ProbeSettings(timeout_s=0.1)) == 0.1


def test_abandoned_long_prompt_is_not_hung() -> None:
    """Its client left; the engine computes the chunk, and the next one, which it had scheduled."""

    def seen(at_s: float, kv: float, *, requests: int) -> MetricsReading:
        # The gauges still show a request whose client left, until the step ends.
        found = look(at_s, 100, running=requests, waiting=1, load=2 if at_s <= 6.5 else 1)
        assert isinstance(found.counters, VllmCounters)
        steps = (("vllm:kv_cache_usage_perc", kv),)
        rank = RankCounters(rank="0", running=requests, waiting=1, steps=steps)
        return replace(found, counters=replace(found.counters, ranks=(rank,)), long_prompts=int(at_s <= 6.5))

    now = told([look(0.0, 100), 0.0, token(0.0), seen(0.5, 0.1, requests=1)]).canary_sent(0.6)
    for at_s in (2.5, 4.5, 6.5):
        now = now.after(seen(at_s, at_s / 10, requests=1), PROBE)
        assert now.verdict is not None
        assert now.verdict.good
    # The client left during a step of 4 s; then another.
    for tenth in range(1, 80):
        at_s = 6.5 + tenth / 10
        now = now.after(seen(at_s, 0.65 if at_s < 10.5 else 0.0, requests=int(at_s < 10.5)), PROBE)
        assert now.verdict.good, f"{at_s:.1f} s: {now.evidence}"
    for tenth in range(80, 120):
        now = now.after(seen(6.5 + tenth / 10, 0.0, requests=0), PROBE)
    assert now.verdict is Verdict.HUNG


def test_paused_engine_does_not_return_when_a_client_leaves() -> None:
    """A paused core takes abandoned requests out, and its gauges move; recorded from vLLM 0.32."""

    def seen(at_s: float, running: int, waiting: int, pause: str | None) -> MetricsReading:
        found = look(at_s, 191, running=running, waiting=waiting, load=8)
        assert isinstance(found.counters, VllmCounters)
        rank = RankCounters(rank="0", running=running, waiting=waiting)
        return replace(found, counters=replace(found.counters, ranks=(rank,)), pause=pause)

    now = told([look(0.0, 191), 0.0, token(0.0), seen(0.5, 4, 0, None), 0.6])
    assert now.books.suspects_pause(0.8)
    now = told([seen(0.8, 4, 0, "paused")], now)
    assert now.verdict is Verdict.PAUSED, "before it would count as hung"
    now = told([seen(4.0, 4, 0, None)], now)
    assert now.verdict is Verdict.PAUSED
    for reading in (seen(4.3, 0, 7, None), seen(4.8, 0, 6, "paused"), seen(5.4, 0, 5, None)):
        now = now.after(reading, PROBE)
        assert now.verdict is Verdict.PAUSED
    assert (
        told([seen(5.9, 4, 1, "")], now).after(look(6.0, 192, running=4, load=8), PROBE).verdict is Verdict.READY
    )


def test_standstill_after_short_prompts_is_evidence_before_it_is_a_hang() -> None:
    judgement = told([look(0.0, 1), 0.0, token(0.0), *SHORT_PROMPTS, 5.1, look(5.9, 101, 2, 2)])
    assert judgement.finding is not None
    assert judgement.finding.reading == "queue"
    judgement = told([look(6.1, 101, 2, 2)], judgement)
    report = judgement.report("pool", "e0", 6.1, 1)
    assert report is not None
    assert report.verdict is Verdict.BUSY
    assert [(one.reading, round(one.age_s, 1)) for one in report.reasons] == [(STANDSTILL_READING, 1.1)]
    moving = told([look(6.3, 105, 2)], judgement).report("pool", "e0", 6.3, 2)
    assert moving is not None
    assert moving.reasons == ()
    assert told([look(8.1, 101, 2, 2)], judgement).verdict is Verdict.HUNG


@pytest.mark.parametrize("readings", [SHORT_PROMPTS[:4], LONG_STEP])
def test_few_prompts_or_a_long_step_explain_a_standstill(readings: list[MetricsReading]) -> None:
    last_s = readings[-1].at_s
    judgement = told([look(0.0, 1), 0.0, token(0.0), *readings])
    judgement = told([last_s + 0.1, replace(readings[-1], at_s=last_s + 1.2)], judgement)
    assert judgement.finding is not None
    assert judgement.finding.reading == "queue"
