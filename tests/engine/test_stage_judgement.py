"""Verdicts on engines that only prefill or only decode: what they lack is not a hang, and a hang is still one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.engine_judgement import EngineJudgement
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.probe_settings import ProbeSettings
from engine.probe_state import ProbeState
from engine.report import Verdict
from engine.vllm_metrics import RankCounters, VllmCounters

PROBE = ProbeSettings()
SILENT = ProbeFailure(trouble=ProbeFailureReason.SILENT, detail="no answer")


def look(
    at_s: float,
    *,
    tokens: int = 0,
    first: int = 0,
    prompts: int = 0,
    running: int = 0,
    waiting: int = 0,
    kv: float = 0,
) -> MetricsReading:
    """A reading: ``first`` tokens of requests among all, whole ``prompts``, and the state of the KV cache."""
    counters = VllmCounters(
        generation_tokens=tokens,
        prompt_tokens=prompts,
        running=running,
        waiting=waiting,
        first_tokens=first,
        ranks=(RankCounters(rank="0", running=running, waiting=waiting, steps=(("kv", kv),)),),
    )
    return MetricsReading(at_s=at_s, counters=counters, in_flight=running + waiting)


def verdicts(story: Callable[[float], MetricsReading], *, answers: bool, seconds: float = 20) -> set[Verdict]:
    """Verdicts on an engine that is read ten times a second, and asked for a token whenever the prober wants to.

    ``answers``: whether those canaries get their token; otherwise they wait behind other work until they time out.
    """
    now = EngineJudgement(books=ProbeState(slots=8)).after(look(0.0, tokens=1, first=1), PROBE)
    now = now.canary_sent(0.0).after(CanaryReading(sent_at_s=0.0, at_s=0.02), PROBE)
    found, asked, sent_at_s = set(), 0, None
    for at in range(1, int(10 * seconds)):
        at_s = 0.1 * at
        if sent_at_s is not None and answers:
            asked += 1
            now, sent_at_s = now.after(CanaryReading(sent_at_s=sent_at_s, at_s=at_s), PROBE), None
        elif sent_at_s is not None and at_s - sent_at_s >= PROBE.timeout_s:
            late = CanaryReading(sent_at_s=sent_at_s, at_s=at_s, failure=SILENT)
            now, sent_at_s = now.after(late, PROBE), None
        reading = story(at_s)
        assert isinstance(reading.counters, VllmCounters)
        counters = replace(
            reading.counters,
            generation_tokens=reading.counters.generation_tokens + asked,
            first_tokens=(reading.counters.first_tokens or 0) + asked,
        )
        own = 0 if sent_at_s is None else 1
        now = now.after(replace(reading, counters=counters, in_flight=(reading.in_flight or 0) + own), PROBE)
        if now.verdict is not None:
            found.add(now.verdict)
        if now.wants_canary:
            now, sent_at_s = now.canary_sent(at_s), at_s
    return found


def test_prefill_engine_makes_progress_by_its_cache_and_one_token_a_prompt() -> None:
    def long_prompts(at_s: float) -> MetricsReading:
        """Six chunks of 0.8 s each, one token at the end, and the next prompt at once: no second token ever."""
        done = int(at_s / 4.8)
        return look(
            at_s, tokens=1 + done, first=1 + done, prompts=8000 * done, running=1, waiting=3, kv=int(at_s / 0.8)
        )

    assert verdicts(long_prompts, answers=False) <= {Verdict.READY, Verdict.BUSY}


def test_prefill_engine_that_stands_still_is_hung() -> None:
    def stopped(at_s: float) -> MetricsReading:
        return look(at_s, tokens=1, first=1, running=1, waiting=3, kv=min(3, int(at_s / 0.8)))

    assert Verdict.HUNG in verdicts(stopped, answers=False)


def test_prefill_engine_that_keeps_caches_for_others_is_ready() -> None:
    """Its requests have ended; their blocks stay until a decode engine fetched them."""

    def kept(at_s: float) -> MetricsReading:
        return look(at_s, tokens=50, first=50, prompts=9000, kv=70)

    assert verdicts(kept, answers=True) == {Verdict.READY}


def test_decode_engine_without_prompts_is_not_hung() -> None:
    """Its counters of prompts and of first tokens stand still."""

    def decodes(at_s: float) -> MetricsReading:
        return look(at_s, tokens=1 + int(80 * at_s), first=1, running=8, kv=int(2 * at_s))

    assert verdicts(decodes, answers=False) <= {Verdict.READY, Verdict.BUSY}


@pytest.mark.parametrize(("answers", "hung"), [(True, False), (False, True)])
def test_decode_engine_that_waits_for_caches_proves_itself_by_canaries(answers: bool, hung: bool) -> None:
    """Requests whose KV cache is on the way are counted as waiting, and nothing of them moves."""

    def waits(at_s: float) -> MetricsReading:
        return look(at_s, tokens=1, first=1, waiting=4, kv=40)

    assert (Verdict.HUNG in verdicts(waits, answers=answers)) is hung
