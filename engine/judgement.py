"""From timestamped readings to a verdict: is this engine producing tokens, and if not, whose fault is that?

One rule carries most of it: *whoever holds work must move*. Tokens read plus tokens written grow whenever an
engine does anything, so an engine that holds requests while that sum stands still for ``stall_after_s`` is hung,
and one whose sum grows is alive however long its queue. Neither a socket nor ``/health`` proves anything.

During a real hang the engine's own gauges freeze too, at zero if it was idle. So the prober brings work of its
own, one token at a time: a canary. It is sent whenever it does not queue behind others (a free slot, or nothing
moving), and is itself a request in flight that is known to exist. No verdict of *hung* is given on gauges alone
while a canary can be asked: a gauge that got stuck on a living engine must not take it out.

Everything here is a pure fold over readings; the clock comes with them.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.findings import KV_FULL_RATIO, Finding, finding_of
from engine.probe_settings import ProbeSettings
from engine.reading import Answer, Failure, Look, Trouble
from engine.report import Canary, Doubt, EngineReport, Verdict
from engine.vllm_metrics import Counters

# A second opinion soon after the first bad look: one lost packet must not eject, and must not cost an interval.
CONFIRM_S: Final = 0.1
# Recovery that is noticed late is the expensive kind of lateness: engines that are out are looked at this often.
OUT_INTERVAL_S: Final = 0.25


RECOVERED_CANARIES: Final = 16
"""An engine that owed a token is asked often until so many came in a row: somebody waits for them."""

_SLOW_CANARY: Final = 2.0
_CANARY_NOISE_S: Final = 0.03
# What is slow for minutes becomes usual, or an engine that works more slowly now would be asked often for ever.
_USUAL_GROWS: Final = 1.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is known of one engine after some readings.

    ``finding`` is None until something is certain. ``fresh`` says whether the last reading decided anything:
    only then is there something to report. Times are monotonic seconds; ``*_since_s`` is None when not so.
    ``usual_canary_s`` is what a canary takes when nothing holds it up, and ``slow_canaries`` how many more are
    worth asking for soon since one took clearly longer.
    """

    slots: int
    finding: Finding | None = None
    fresh: bool = False
    doubt: Doubt | None = None
    good_in_row: int = 0
    bad_in_row: int = 0
    looked_at_s: float | None = None
    heard_at_s: float | None = None
    counters: Counters | None = None
    trouble: Failure | None = None
    in_flight: int | None = None
    others: int = 0
    progressed: bool = False
    progressed_at_s: float | None = None
    stalled_since_s: float | None = None
    tokens_per_s: float | None = None
    token_seen: bool = False
    asked_at_s: float | None = None
    unanswered_since_s: float | None = None
    answer: Failure | None = None
    answered_since_look: int = 0
    cuts_in_row: int = 0
    shed_since_s: float | None = None
    errored: bool = False
    canary: Canary | None = None
    canary_failed: bool = False
    usual_canary_s: float | None = None
    slow_canaries: int = 0

    @property
    def verdict(self) -> Verdict | None:
        """The verdict; None until something is certain."""
        return None if self.finding is None else self.finding.verdict

    @property
    def evidence(self) -> str:
        """One sentence on why; empty without a verdict."""
        return "" if self.finding is None else self.finding.sentence

    @property
    def saturated(self) -> bool:
        """Whether a new request would queue."""
        if self.counters is None:
            return False
        own = 1 if self.asked_at_s is not None else 0
        return self.counters.waiting > own or self.counters.running - own >= self.slots or self.cache_full

    @property
    def cache_full(self) -> bool:
        """Whether the KV cache has no room for a new request: a shortage that ends when requests do."""
        usage = None if self.counters is None else self.counters.kv_cache_usage_ratio
        return usage is not None and usage >= KV_FULL_RATIO

    @property
    def wants_canary(self) -> bool:
        """Whether to ask for a token now: never behind the work of others, always when nothing moves."""
        if self.asked_at_s is not None or (
            self.trouble is not None and (self.trouble.gone or self.trouble.unproved)
        ):
            return False
        good = self.verdict is not None and self.verdict.good
        return not (good and self.progressed and self.saturated)

    def asked(self, at_s: float) -> "Judgement":
        """The judgement while a canary sent at ``at_s`` is out."""
        since = self.unanswered_since_s
        return replace(self, asked_at_s=at_s, unanswered_since_s=at_s if since is None else since, fresh=False)

    def after(self, reading: Look | Answer, probe: ProbeSettings) -> "Judgement":
        """The judgement with one more reading."""
        if isinstance(reading, Look):
            read = _looked(_unwatched(self, reading.at_s) if reading.late else self, reading)
        else:
            read = _answered(self, reading)
        finding = finding_of(read, reading.at_s, probe)
        if finding is None or _silent(reading):
            # A silence alone decides nothing: what the counters say at that moment does, and they are read next.
            return replace(read, fresh=False)
        verdict = finding.verdict
        good = verdict.good
        judged = replace(
            read,
            finding=finding,
            fresh=not (isinstance(reading, Look) and verdict is self.verdict and _repeats(read, verdict)),
            doubt=_doubt(read, verdict),
        )
        return replace(
            judged,
            good_in_row=self.good_in_row + judged.fresh if good else 0,
            bad_in_row=0 if good else self.bad_in_row + judged.fresh,
        )

    @property
    def recovering(self) -> bool:
        """Whether its canaries failed, or were slow, until only lately, and more of them are worth asking for.

        A judge beside the engine is not told that others keep it out for being slow. But its own canaries were
        slow then, too, and the first quick one is what brings the engine back.
        """
        return (self.canary_failed or self.slow_canaries > 0) and not self.saturated

    def pause_s(self, at_s: float, probe: ProbeSettings) -> float:
        """Seconds until the next look is due: sooner when it may confirm or change something."""
        good = self.verdict is not None and self.verdict.good and self.good_in_row >= probe.healthy_after
        if good and not self.recovering:
            pause_s = probe.interval_s
        elif 0 < self.bad_in_row < probe.unhealthy_after:
            pause_s = min(CONFIRM_S, probe.interval_s)
        else:
            pause_s = min(OUT_INTERVAL_S, probe.interval_s)
        if self.stalled_since_s is not None and at_s < self.stalled_since_s + probe.stall_after_s:
            pause_s = min(pause_s, self.stalled_since_s + probe.stall_after_s - at_s)
        return pause_s

    def report(self, pool: str, engine: str, at_s: float, sequence: int) -> EngineReport | None:
        """What to tell the control plane; None when the last reading decided nothing."""
        if self.verdict is None or not self.fresh:
            return None
        counters = self.counters
        gauges = None if counters is None else counters.running + counters.waiting
        return EngineReport(
            pool=pool,
            engine=engine,
            verdict=self.verdict,
            evidence=self.evidence,
            observed_at_s=at_s,
            sequence=sequence,
            boot_id="" if counters is None or counters.started_at_s is None else f"{counters.started_at_s:.3f}",
            requests_in_flight=self.in_flight if self.in_flight is not None else gauges,
            requests_waiting=None if counters is None else counters.waiting,
            kv_cache_usage_ratio=None if counters is None else counters.kv_cache_usage_ratio,
            tokens_per_s=self.tokens_per_s,
            doubt=self.doubt,
            canary=self.canary,
        )


def _silent(reading: Look | Answer) -> bool:
    return (
        isinstance(reading, Answer)
        and reading.failure is not None
        and reading.failure.trouble in (Trouble.SILENT, Trouble.OURS)
    )


def _repeats(read: Judgement, verdict: Verdict) -> bool:
    """Whether a look that led to the same verdict only says again what a canary has said, or is about to say."""
    return read.answer is not None or (verdict.good and read.wants_canary)


def _unwatched(before: Judgement, at_s: float) -> Judgement:
    """All patience begun anew: time we did not watch is no evidence of anything."""
    return replace(
        before,
        heard_at_s=None if before.heard_at_s is None else at_s,
        stalled_since_s=None if before.stalled_since_s is None else at_s,
        unanswered_since_s=None if before.unanswered_since_s is None else at_s,
        shed_since_s=None if before.shed_since_s is None else at_s,
    )


def _looked(before: Judgement, look: Look) -> Judgement:
    """What is known after a look at the counters."""
    if isinstance(look.counters, Failure):
        unsure = look.counters.trouble in (Trouble.SILENT, Trouble.OURS)
        if unsure and (before.heard_at_s is not None or look.counters.trouble is Trouble.OURS):
            # What was known stays known for as long as the silence may still be an accident.
            return replace(before, looked_at_s=look.at_s, trouble=look.counters, progressed=False)
        if look.counters.gone:
            # Nothing learnt from a process that is gone holds for the next one at this address.
            return Judgement(
                slots=before.slots,
                finding=before.finding,
                good_in_row=before.good_in_row,
                bad_in_row=before.bad_in_row,
                looked_at_s=look.at_s,
                heard_at_s=before.heard_at_s,
                trouble=look.counters,
            )
        return replace(
            before,
            looked_at_s=look.at_s,
            # An engine that was never heard is silent from the first look on.
            heard_at_s=look.at_s if look.counters.spoke else (before.heard_at_s or look.at_s),
            trouble=look.counters,
            # No canary is sent to a stranger, so the looks speak for themselves.
            answer=None if look.counters.unproved else before.answer,
            progressed=False,
            counters=None,
            in_flight=look.in_flight,
            errored=look.errored,
            others=0,
            stalled_since_s=None,
        )
    fresh, known = look.counters, before.counters
    reborn = known is not None and (
        fresh.tokens < known.tokens
        or (None not in (fresh.started_at_s, known.started_at_s) and fresh.started_at_s != known.started_at_s)
    )
    own = 1 if before.asked_at_s is not None else 0
    others = max(0, fresh.running + fresh.waiting - own, (look.in_flight or 0) - own)
    progressed = known is not None and not reborn and fresh.tokens > known.tokens
    if progressed and known is not None and not others and not before.others:
        # Tokens that canaries had long since brought are no news: the engine may have stopped after them.
        progressed = fresh.generation_tokens - known.generation_tokens > before.answered_since_look
    return replace(
        before,
        looked_at_s=look.at_s,
        heard_at_s=look.at_s,
        trouble=None,
        counters=fresh,
        in_flight=look.in_flight,
        errored=look.errored,
        answered_since_look=0,
        others=others,
        progressed=progressed,
        progressed_at_s=look.at_s if progressed else (None if reborn else before.progressed_at_s),
        stalled_since_s=None if progressed or not others else _stalled_since_s(before, look.at_s),
        tokens_per_s=_tokens_per_s(before, look.at_s, fresh) if progressed else 0.0,
        token_seen=fresh.tokens > 0 or (before.token_seen and not reborn),
        # Full and moving: what a canary heard before the slots filled no longer says anything.
        answer=None if progressed and _outdated(before, fresh, own) else before.answer,
        shed_since_s=None if progressed or others else before.shed_since_s,
    )


def _doubt(now: Judgement, verdict: Verdict) -> Doubt | None:
    """Which reading behind the verdict could be our own fault."""
    if verdict is Verdict.DEAD and now.trouble is not None and now.trouble.trouble is Trouble.SILENT:
        return Doubt.SILENT
    refused = now.answer is not None and (now.answer.refusal or now.answer.unproved)
    if verdict is Verdict.DEGRADED and (refused or (now.trouble is not None and now.trouble.unproved)):
        return Doubt.REFUSED
    return None


def _stalled_since_s(before: Judgement, at_s: float) -> float:
    """Since when others' requests have been seen to stand still."""
    if before.stalled_since_s is not None:
        return before.stalled_since_s
    seen_s = before.looked_at_s if before.others and before.looked_at_s is not None else at_s
    return max(seen_s, before.progressed_at_s or seen_s)


def _tokens_per_s(before: Judgement, at_s: float, fresh: Counters) -> float | None:
    if before.counters is None or before.looked_at_s is None or at_s <= before.looked_at_s:
        return None
    return (fresh.tokens - before.counters.tokens) / (at_s - before.looked_at_s)


def _outdated(before: Judgement, fresh: Counters, own: int) -> bool:
    full = fresh.waiting > own or fresh.running - own >= before.slots
    return full and before.answer is not None and not (before.answer.draining or before.answer.refusal)


def _answered(before: Judgement, answer: Answer) -> Judgement:
    """What is known after a canary has ended."""
    ended = replace(before, asked_at_s=None)
    failure = answer.failure
    if failure is None:
        in_row = 1 if before.canary is None else before.canary.in_row + 1
        took_s, usual_s = answer.at_s - answer.sent_at_s, before.usual_canary_s
        slow = usual_s is not None and took_s > _SLOW_CANARY * usual_s + _CANARY_NOISE_S
        return replace(
            ended,
            heard_at_s=answer.at_s,
            trouble=before.trouble if before.trouble is not None and before.trouble.answered else None,
            progressed=True,
            progressed_at_s=answer.at_s,
            stalled_since_s=None,
            token_seen=True,
            answered_since_look=before.answered_since_look + 1,
            unanswered_since_s=None,
            answer=None,
            cuts_in_row=0,
            shed_since_s=None,
            canary=Canary(in_row=in_row, at_s=answer.at_s, took_s=took_s),
            canary_failed=before.canary_failed and in_row < RECOVERED_CANARIES,
            usual_canary_s=took_s if usual_s is None else min(took_s, usual_s * _USUAL_GROWS),
            slow_canaries=RECOVERED_CANARIES if slow else max(0, before.slow_canaries - 1),
        )
    if failure.trouble is not Trouble.OURS and not failure.shed:
        # To be turned away for want of room is no failure, and no proof either.
        known = ended.canary
        ended = replace(ended, canary=known and replace(known, in_row=0), canary_failed=True)
    if failure.trouble is Trouble.SILENT:
        return replace(ended, progressed=False, answer=None, shed_since_s=None)
    if failure.trouble is Trouble.OURS:
        return replace(_unwatched(ended, answer.at_s), progressed=False, unanswered_since_s=None)
    if failure.trouble is Trouble.REFUSED:
        return _looked(ended, Look(at_s=answer.at_s, counters=failure))
    if failure.trouble is Trouble.CUT:
        # Once is the race of a kept connection that the engine was closing just then; twice is not.
        cuts = ended.cuts_in_row + 1
        return replace(ended, cuts_in_row=cuts, answer=failure if cuts > 1 else ended.answer, progressed=False)
    return replace(
        ended,
        heard_at_s=answer.at_s,
        progressed=ended.progressed and failure.shed,
        unanswered_since_s=None,
        answer=failure,
        cuts_in_row=0,
        shed_since_s=(ended.shed_since_s or answer.at_s) if failure.shed else None,
    )
