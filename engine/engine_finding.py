"""Verdict on an engine from its probe state.

Every verdict names its evidence: reading, threshold and since when.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.engine_readings import ProbeFailure, ProbeFailureReason
from engine.probe_settings import PREFILL_STALL_S, ProbeSettings
from engine.probe_state import KV_FULL_RATIO, ProbeState
from engine.report import (
    PREFILL_READING,
    PROBE_READING,
    PROBE_THRESHOLD,
    STANDSTILL_READING,
    Evidence,
    Verdict,
)

SILENCE_S: Final = 5.0
"""Seconds without an answer on an open port until an engine is dead.

Longer than one token may take: an overloaded API process left ``/metrics`` unanswered for 1.5 s with a working
engine, and ejecting a busy engine starts a cascade.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinding:
    """A verdict with its reading and threshold; ``since_s`` on the prober's clock.

    ``hung_ranks``: names of the data-parallel ranks that hang.
    """

    verdict: Verdict
    reading: str
    sentence: str
    threshold: str = ""
    since_s: float | None = None
    hung_ranks: tuple[str, ...] = ()

    def evidence(self, at_s: float) -> Evidence:
        """Evidence for a report made at ``at_s``."""
        age_s = 0.0 if self.since_s is None else max(0.0, at_s - self.since_s)
        return Evidence(reading=self.reading, threshold=self.threshold, age_s=age_s, sentence=self.sentence)


def engine_finding(now: ProbeState, at_s: float, probe: ProbeSettings) -> EngineFinding | None:
    """Verdict and evidence; None while readings are inconclusive."""
    found = _finding(now, at_s, probe)
    if not now.pause or (found is not None and found.verdict is not Verdict.HUNG):
        return found
    # The engine's own word: no need to wait until it would count as hung.
    return EngineFinding(
        verdict=Verdict.PAUSED,
        reading="pause",
        sentence=f"{now.pause} by order" + (f"; {found.sentence}" if found is not None else ""),
        since_s=now.progressed_at_s,
    )


def _finding(now: ProbeState, at_s: float, probe: ProbeSettings) -> EngineFinding | None:
    if now.trouble is not None and not now.trouble.answered:
        return _unreachable(now, now.trouble, at_s, probe)
    stalled = _stalled(now, at_s, probe) or _hung_rank(now, at_s, probe)
    if now.answer is not None:
        return _after_failure(now, now.answer, stalled, at_s, probe)
    if stalled is not None and (stalled.hung_ranks or not now.progressed):
        return replace(stalled, verdict=_not_started(now, Verdict.HUNG))
    if now.progressed:
        return _moving(now, at_s, probe)
    return _after_silence(now, at_s, probe) or _unusual_standstill(now, at_s, probe)


def _unreachable(
    now: ProbeState, trouble: ProbeFailure, at_s: float, probe: ProbeSettings
) -> EngineFinding | None:
    """Verdict after a probe without an answer."""
    if trouble.gone:
        return EngineFinding(verdict=Verdict.DEAD, reading="connection", sentence=trouble.detail, since_s=at_s)
    if trouble.trouble is ProbeFailureReason.OURS:
        return None
    if trouble.trouble is ProbeFailureReason.UNTRUSTED:
        return _unproved(trouble)
    since_s = now.heard_at_s if now.heard_at_s is not None else at_s
    allowed_s = max(SILENCE_S, probe.timeout_s, probe.decode_stall_s)
    if at_s - since_s >= allowed_s:
        return EngineFinding(
            verdict=Verdict.DEAD,
            reading="answer",
            threshold=f"answer within {allowed_s:g} s",
            since_s=since_s,
            sentence=f"no answer for {at_s - since_s:.1f} s (limit {allowed_s:g} s): {trouble.detail}",
        )
    return None


def _unproved(failure: ProbeFailure) -> EngineFinding:
    """Verdict on an engine with an invalid certificate.

    It may work, but Envoys with the same CA cannot reach it. The CA itself may be wrong, so this is soft evidence,
    and doubted if many engines show it.
    """
    return EngineFinding(
        verdict=Verdict.DEGRADED,
        reading="certificate",
        threshold="a valid certificate for its name",
        sentence=f"up, but its certificate is not trusted: {failure.detail}",
    )


def _stalled(now: ProbeState, at_s: float, probe: ProbeSettings) -> EngineFinding | None:
    """Evidence that requests make no progress, if any."""
    limit_s = now.stall_limit_s(probe)
    if now.stalled_since_s is None or at_s - now.stalled_since_s < limit_s:
        return None
    if now.unanswered_since_s is None and now.answer is None:
        return None
    source = _limit_source(probe, prefilling=now.prefilling, longest_s=now.longest_step_s, prompt_s=now.own_step_s)
    return EngineFinding(
        verdict=Verdict.HUNG,
        reading=PREFILL_READING if now.prefilling else "tokens",
        threshold=f"token within {limit_s:.2g} s while requests are in flight",
        since_s=now.stalled_since_s,
        sentence=(
            f"{now.others} requests in flight and no token for {at_s - now.stalled_since_s:.1f} s "
            f"(limit {limit_s:.2g} s{source})"
        ),
    )


def _unusual_standstill(now: ProbeState, at_s: float, probe: ProbeSettings) -> EngineFinding | None:
    """Evidence of a standstill that only an unusually long prompt explains; it ejects nothing alone."""
    since_s = now.unusual_standstill_since_s(at_s, probe)
    if since_s is None:
        return None
    limit_s = now.stall_limit_s(probe)
    return EngineFinding(
        verdict=Verdict.BUSY,
        reading=STANDSTILL_READING,
        threshold=f"token within {probe.decode_stall_s:g} s after prompts with short steps",
        since_s=since_s,
        sentence=(
            f"{now.others} requests in flight and no token for {at_s - since_s:.1f} s, unless for a long prompt "
            f"hung (limit {limit_s:.2g} s)"
        ),
    )


def _hung_rank(now: ProbeState, at_s: float, probe: ProbeSettings) -> EngineFinding | None:
    """Evidence that a data-parallel rank hangs, even while others work."""
    found = [(now.hung_rank_since_s(rank, at_s, probe), rank) for rank in now.ranks]
    hung = [(since_s, rank) for since_s, rank in found if since_s is not None]
    if not hung or now.trouble is not None:
        return None
    since_s, worst = min(hung, key=lambda one: one[0])
    limit_s = now.rank_limit_s(worst, probe)
    work = f"{worst.work} requests in flight and" if worst.work else "a probe, and"
    source = _limit_source(probe, prefilling=worst.prefilling, longest_s=now.longest_step_s)
    names = tuple(rank.counters.rank for _, rank in hung)
    return EngineFinding(
        verdict=Verdict.HUNG,
        # One long prompt may explain it.
        reading=PREFILL_READING if all(rank.prefilling for _, rank in hung) else "rank",
        threshold=f"token within {limit_s:.2g} s from every data-parallel rank",
        since_s=since_s,
        sentence=(
            f"data-parallel rank {worst.counters.rank}: {work} no token for {at_s - since_s:.1f} s "
            f"(limit {limit_s:.2g} s{source}); {len(hung)} of {len(now.ranks)} ranks hung"
            + (f": {', '.join(names)}" if len(names) > 1 else "")
        ),
        hung_ranks=names,
    )


def _limit_source(probe: ProbeSettings, *, prefilling: bool, longest_s: float, prompt_s: float = 0.0) -> str:
    """Why the limit in force is as long as it is."""
    if probe.stall_after_s is not None or not prefilling:
        return ""
    if prompt_s:
        return f" for a prefill: {PREFILL_STALL_S:g} s + longest step of this prompt, {prompt_s:.1f} s"
    if longest_s:
        return f" for a prefill: {PREFILL_STALL_S:g} s + longest recent step, {longest_s:.1f} s"
    return " for a prefill"


def _after_failure(
    now: ProbeState, failure: ProbeFailure, stalled: EngineFinding | None, at_s: float, probe: ProbeSettings
) -> EngineFinding:
    """Verdict after a canary answered without a token."""
    if failure.draining:
        return _probe_says(Verdict.DRAINING, f"draining: {failure.detail}")
    if stalled is not None:
        # A hung engine with a queue limit eventually sheds: missing tokens outweigh its answer.
        return replace(stalled, sentence=f"{stalled.sentence}; probe answer: {failure.detail}")
    if failure.shed:
        return _shedding(now, failure, at_s, probe)
    if failure.unproved or failure.refusal:
        return _unproved(failure) if failure.unproved else _refusing(failure)
    if now.errored:
        # The API process outlives the engine core and reports it.
        return EngineFinding(
            verdict=Verdict.DEAD,
            reading="health",
            threshold="/health without an error",
            since_s=at_s,
            sentence=f"/health reports an error; probe answer: {failure.detail}",
        )
    return _probe_says(_not_started(now, Verdict.DEGRADED), f"probe answered without a token: {failure.detail}")


def _refusing(failure: ProbeFailure) -> EngineFinding:
    return _probe_says(
        Verdict.MISCONFIGURED, f"refuses the probe: {failure.detail}; {_refusal_fix(failure.status)}"
    )


def _refusal_fix(status: int) -> str:
    if status in (401, 403):
        return "set the probe's API key"
    if status == 404:
        return "check model and path in policy and engine"
    return "check the probe's path and the engine's configuration"


def _probe_says(verdict: Verdict, sentence: str) -> EngineFinding:
    return EngineFinding(verdict=verdict, reading=PROBE_READING, threshold=PROBE_THRESHOLD, sentence=sentence)


def _shedding(now: ProbeState, failure: ProbeFailure, at_s: float, probe: ProbeSettings) -> EngineFinding:
    """Verdict on an engine that sheds: busy, unless nothing is in flight."""
    if not now.token_seen and not now.others:
        return _probe_says(Verdict.STARTING, f"no token yet: {failure.detail}")
    refused_s = 0.0 if now.shed_since_s is None else at_s - now.shed_since_s
    if now.counters is not None and not now.others and refused_s >= probe.decode_stall_s:
        return replace(
            _probe_says(
                Verdict.DEGRADED,
                f"sheds requests for {refused_s:.1f} s with none in flight: {failure.detail}",
            ),
            since_s=now.shed_since_s,
        )
    return _probe_says(Verdict.BUSY, f"full: {failure.detail}")


def _moving(now: ProbeState, at_s: float, probe: ProbeSettings) -> EngineFinding:
    """Verdict on an engine that has just made progress."""
    waited_s = 0.0 if now.unanswered_since_s is None else at_s - now.unanswered_since_s
    counters = now.counters
    if counters is not None and (now.saturated or waited_s >= probe.timeout_s):
        work = f"{counters.running} running, {counters.waiting} waiting, tokens advance"
        if now.cache_full:
            return EngineFinding(
                verdict=Verdict.BUSY,
                reading="kv_cache",
                threshold=f"below {KV_FULL_RATIO:.0%}",
                sentence=f"KV cache {counters.kv_cache_usage_ratio:.0%} full, {work}",
            )
        return EngineFinding(verdict=Verdict.BUSY, reading="queue", threshold="a free slot", sentence=work)
    return EngineFinding(verdict=Verdict.READY, reading="tokens", sentence="produces tokens")


def _after_silence(now: ProbeState, at_s: float, probe: ProbeSettings) -> EngineFinding | None:
    """Verdict while a canary is unanswered and no token advanced."""
    since_s = now.silent_since_s
    if since_s is None:
        return None
    silent_s = at_s - since_s
    limit_s = now.canary_limit_s(probe) if now.trouble is not None else now.idle_limit_s(probe)
    if silent_s < limit_s:
        return None
    allowed = f"token within {limit_s:.3g} s when idle"
    if now.trouble is not None:
        # Without counters a long queue looks like a hang: soft evidence, so the capacity floor applies.
        return EngineFinding(
            verdict=_not_started(now, Verdict.DEGRADED),
            reading=PROBE_READING,
            threshold=allowed,
            since_s=since_s,
            sentence=f"no token for {silent_s:.1f} s, cause unknown: {now.trouble.detail}",
        )
    if now.ranks or (now.others and not now.overdue_alone):
        return None  # possibly a long prefill: the stall limit applies, or that of the rank that was asked
    return EngineFinding(
        verdict=_not_started(now, Verdict.HUNG),
        reading=PROBE_READING if now.surely_idle or not now.prefilling else PREFILL_READING,
        threshold=allowed,
        since_s=since_s,
        sentence=f"idle, but produced no token for {silent_s:.1f} s (limit {limit_s:.3g} s)",
    )


def _not_started(now: ProbeState, otherwise: Verdict) -> Verdict:
    """STARTING until the first token since the start, then ``otherwise``."""
    return otherwise if now.token_seen else Verdict.STARTING
