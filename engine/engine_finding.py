"""What the books of an engine amount to: a verdict, and the reading that made it.

Each function answers for one situation and names its evidence, so that every verdict says which reading, which
threshold and since when.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.engine_readings import ProbeFailure, ProbeFailureReason
from engine.probe_settings import ProbeSettings
from engine.probe_state import KV_FULL_RATIO, ProbeState
from engine.report import Evidence, Verdict

SILENCE_S: Final = 5.0
"""An open port that answers nothing this long is a dead engine.

Longer than what one token may take: an overloaded API process was seen to leave ``/metrics`` unanswered for 1.5 s
with its engine at work, and to take a busy engine out starts a cascade.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinding:
    """A verdict and the reading that made it: what it was held against, and since when, on the judge's clock."""

    verdict: Verdict
    reading: str
    sentence: str
    threshold: str = ""
    since_s: float | None = None

    def evidence(self, at_s: float) -> Evidence:
        """The finding as a report tells it at ``at_s``."""
        age_s = 0.0 if self.since_s is None else max(0.0, at_s - self.since_s)
        return Evidence(reading=self.reading, threshold=self.threshold, age_s=age_s, sentence=self.sentence)


def engine_finding(now: ProbeState, at_s: float, probe: ProbeSettings) -> EngineFinding | None:
    """The verdict and its evidence; None when the readings so far prove nothing."""
    if now.trouble is not None and not now.trouble.answered:
        return _unreachable(now, now.trouble, at_s, probe)
    stalled = _stalled(now, at_s, probe)
    if now.answer is not None:
        return _after_failure(now, now.answer, stalled, at_s, probe)
    if now.progressed:
        return _moving(now, at_s, probe)
    if stalled is not None:
        return replace(stalled, verdict=_not_started(now, Verdict.HUNG))
    return _after_silence(now, at_s, probe)


def _unreachable(
    now: ProbeState, trouble: ProbeFailure, at_s: float, probe: ProbeSettings
) -> EngineFinding | None:
    """The verdict on an engine that did not answer the last look."""
    if trouble.gone:
        return EngineFinding(verdict=Verdict.DEAD, reading="connection", sentence=trouble.detail, since_s=at_s)
    if trouble.trouble is ProbeFailureReason.OURS:
        return None
    if trouble.trouble is ProbeFailureReason.UNTRUSTED:
        return _unproved(trouble)
    since_s = now.heard_at_s if now.heard_at_s is not None else at_s
    allowed_s = max(SILENCE_S, probe.timeout_s, probe.stall_after_s)
    if at_s - since_s >= allowed_s:
        return EngineFinding(
            verdict=Verdict.DEAD,
            reading="answer",
            threshold=f"an answer within {allowed_s:g} s",
            since_s=since_s,
            sentence=f"nothing answers for {at_s - since_s:.1f} s: {trouble.detail}",
        )
    return None


def _unproved(failure: ProbeFailure) -> EngineFinding:
    """The verdict on an engine that does not prove who it is.

    It may well be at work. But whoever trusts the same authorities cannot reach it either, Envoys among them, so
    it is no good. As the authorities may be what is wrong, it is soft evidence, and doubted where many show it.
    """
    return EngineFinding(
        verdict=Verdict.DEGRADED,
        reading="certificate",
        threshold="a certificate that proves its name",
        sentence=f"up, but cannot be trusted: {failure.detail}",
    )


def _stalled(now: ProbeState, at_s: float, probe: ProbeSettings) -> EngineFinding | None:
    """Evidence that requests stand still; None when there is none."""
    if now.stalled_since_s is None or at_s - now.stalled_since_s < probe.stall_after_s:
        return None
    if now.unanswered_since_s is None and now.answer is None:
        return None
    return EngineFinding(
        verdict=Verdict.HUNG,
        reading="tokens",
        threshold=f"a token within {probe.stall_after_s:g} s while requests are in flight",
        since_s=now.stalled_since_s,
        sentence=(
            f"{now.others} requests in flight and no token for {at_s - now.stalled_since_s:.1f} s "
            f"(allowed {probe.stall_after_s:g} s)"
        ),
    )


def _after_failure(
    now: ProbeState, failure: ProbeFailure, stalled: EngineFinding | None, at_s: float, probe: ProbeSettings
) -> EngineFinding:
    """The verdict on an engine whose last canary was answered, and not by a token."""
    if failure.draining:
        return _probe_says(Verdict.DRAINING, f"takes no new requests: {failure.detail}")
    if stalled is not None:
        # With a queue limit a hung engine ends up shedding: what it says does not outweigh what it does.
        return replace(stalled, sentence=f"{stalled.sentence}; the probe got {failure.detail}")
    if failure.shed:
        return _shedding(now, failure, at_s, probe)
    if failure.unproved or failure.refusal:
        return _unproved(failure) if failure.unproved else _refusing(failure)
    if now.errored:
        # The API process outlives the core it spoke for, and says so itself.
        return EngineFinding(
            verdict=Verdict.DEAD,
            reading="health",
            threshold="/health is not an error",
            since_s=at_s,
            sentence=f"the engine says that it is broken, and the probe got {failure.detail}",
        )
    return _probe_says(_not_started(now, Verdict.DEGRADED), f"answers the probe without a token: {failure.detail}")


def _refusing(failure: ProbeFailure) -> EngineFinding:
    return _probe_says(
        Verdict.DEGRADED, f"up, but refuses the probe: {failure.detail}; check model and path in policy and engine"
    )


def _probe_says(verdict: Verdict, sentence: str) -> EngineFinding:
    return EngineFinding(verdict=verdict, reading="probe", threshold="a token", sentence=sentence)


def _shedding(now: ProbeState, failure: ProbeFailure, at_s: float, probe: ProbeSettings) -> EngineFinding:
    """The verdict on an engine that says it has no room: busy, unless it has no reason to be."""
    if not now.token_seen and not now.others:
        return _probe_says(Verdict.STARTING, f"has produced no token yet: {failure.detail}")
    refused_s = 0.0 if now.shed_since_s is None else at_s - now.shed_since_s
    if now.counters is not None and not now.others and refused_s >= probe.stall_after_s:
        return replace(
            _probe_says(
                Verdict.DEGRADED,
                f"turns requests away for {refused_s:.1f} s though nothing is in flight: {failure.detail}",
            ),
            since_s=now.shed_since_s,
        )
    return _probe_says(Verdict.BUSY, f"takes no more for now: {failure.detail}")


def _moving(now: ProbeState, at_s: float, probe: ProbeSettings) -> EngineFinding:
    """The verdict on an engine that has just produced something."""
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
    """The verdict when a canary is out, or was given up, and nothing else has moved."""
    if now.unanswered_since_s is None:
        return None
    since_s = max(now.unanswered_since_s, now.progressed_at_s or 0.0)
    silent_s = at_s - since_s
    if silent_s < probe.timeout_s:
        return None
    allowed = f"a token within {probe.timeout_s:g} s when idle"
    if now.trouble is not None:
        # Without counters a long queue looks the same as a hang; only soft evidence, so that the floor holds.
        return EngineFinding(
            verdict=_not_started(now, Verdict.DEGRADED),
            reading="probe",
            threshold=allowed,
            since_s=since_s,
            sentence=f"no token for {silent_s:.1f} s, and no counters to tell why: {now.trouble.detail}",
        )
    if now.others:
        return None  # someone's long prefill: that has stall_after_s
    return EngineFinding(
        verdict=_not_started(now, Verdict.HUNG),
        reading="probe",
        threshold=allowed,
        since_s=since_s,
        sentence=f"claims to be idle, and no token for {silent_s:.1f} s (allowed {probe.timeout_s:g} s)",
    )


def _not_started(now: ProbeState, otherwise: Verdict) -> Verdict:
    """Starting, for an engine that has not produced a single token since it came up."""
    return otherwise if now.token_seen else Verdict.STARTING
