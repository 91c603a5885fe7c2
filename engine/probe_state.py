"""Facts about one engine after some readings.

A pure fold: ``after_metrics`` and ``after_canary`` add one reading. ``engine_finding`` derives the verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypedDict

from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.probe_settings import PREFILL_STALL_S, ProbeSettings
from engine.rank_progress import (
    RankProgress,
    RankReading,
    after_rank_reading,
    longest_standstill_since_s,
    suspected_rank,
)
from engine.report import CanaryResults, TokenWork
from engine.vllm_metrics import VllmCounters

# Cache blocks are allocated whole, so a full cache may stay slightly below 1.
KV_FULL_RATIO: Final = 0.97

RECOVERED_CANARIES: Final = 16
"""Successful canaries in a row until a recovering engine is probed at its normal interval."""

# Seconds without a token until the engine is asked whether it is paused: twice before it would count as hung.
_PAUSE_AFTER_S: Final = 0.25
_SLOW_CANARY: Final = 2.0
_HUNG_CANARY: Final = 20.0
"""Multiple of its usual time after which a canary counts as missing: a tenfold slowdown, twice."""

_HUNG_CANARY_S: Final = 5.0
_CANARY_NOISE_S: Final = 0.03
# A canary of an idle engine is overdue from here: it usually takes milliseconds.
CANARY_PROMPT_TOKENS: Final = 12
"""About the tokens of a canary's prompt: 43 letters, or a few words, and what its chat template adds."""

_OVERDUE_S: Final = 0.1
_OVERDUE_CANARY: Final = 3.0
# A step this many times longer than the limit was a hang.
_HANG_FACTOR: Final = 2.0
_STEP_MEMORY_S: Final = 60.0
# A chunk this much longer than those before it: twice the growth seen with the context, 0.7 s and 1.4 times.
_UNEVEN_S: Final = 1.5
_UNEVEN: Final = 1.6
_LONGEST_STEP_S: Final = 30.0
# A longer step reads a chunk of a prompt.
_DECODE_STEP_S: Final = 0.3
# Prompts without a longer step that show what is usual for this engine.
_USUAL_PROMPTS: Final = 32
# Clients that leave before their first token stay in ``pending``. What never goes below in this time is removed.
_PENDING_WINDOW_S: Final = 10.0
# Slow for minutes becomes usual; else a permanently slower engine would be probed often forever.
_USUAL_GROWS: Final = 1.002


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentPrompts:
    """First tokens of the last 30 to 60 seconds with readings: ``total`` less the total at the window's start."""

    total: float = 0.0
    start: float = 0.0
    middle: float = 0.0
    middle_at_s: float | None = None

    @property
    def counted(self) -> float:
        """First tokens in the window."""
        return self.total - self.start

    def after(self, at_s: float, total: float) -> "RecentPrompts":
        """The window after a reading of the engine's total."""
        if self.middle_at_s is None or total < self.total:
            return RecentPrompts(total=total, start=total, middle=total, middle_at_s=at_s)
        if at_s - self.middle_at_s < _STEP_MEMORY_S / 2:
            return replace(self, total=total)
        return RecentPrompts(total=total, start=self.middle, middle=total, middle_at_s=at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """Facts about one engine.

    Times are monotonic seconds; ``*_since_s`` is None if the state does not hold. ``usual_canary_s`` is the usual
    time of a canary; ``slow_canaries`` is how many more to send soon after a slow one.

    ``prefilling``: a prefill may have been running at the last progress, or the engine was idle before. Only that
    step explains the standstill since; requests that arrived later do not. ``pending`` is an upper estimate of
    requests without a first token, ``pending_low`` its minimum since ``pending_low_since_s``. ``counted``: the
    engine's count of requests works. ``longest_step_s`` is the longest recent time between two steps with work;
    ``prompt_step_s`` that of the only prompt being read, 0 before its first chunk or if there may be several.
    ``uneven_at_s``: when a step last took much longer than those of its prompt before.
    ``owed``: work of requests that were in flight may remain. ``overdue_alone``: a canary was late with nothing
    else in flight. ``ranks``: data-parallel ranks in order, empty if there is one. ``asked_rank``: place of the
    rank that the last canary was addressed to. ``prompts``: first tokens counted recently. ``answered_canaries``
    are those that this prober sent to this engine process.
    """

    slots: int
    looked_at_s: float | None = None
    heard_at_s: float | None = None
    counters: VllmCounters | None = None
    trouble: ProbeFailure | None = None
    in_flight: int | None = None
    others: int = 0
    progressed: bool = False
    progressed_at_s: float | None = None
    stalled_since_s: float | None = None
    tokens_per_s: float | None = None
    token_seen: bool = False
    asked_at_s: float | None = None
    unanswered_since_s: float | None = None
    answer: ProbeFailure | None = None
    answered_since_look: int = 0
    answered_canaries: int = 0
    cuts_in_row: int = 0
    shed_since_s: float | None = None
    errored: bool = False
    pause: str = ""
    canary: CanaryResults | None = None
    canary_failed: bool = False
    usual_canary_s: float | None = None
    slow_canaries: int = 0
    counted: bool = False
    prefilling: bool = True
    pending: float = 0.0
    pending_low: float = 0.0
    pending_low_since_s: float | None = None
    longest_step_s: float = 0.0
    longest_step_at_s: float = 0.0
    prompt_step_s: float = 0.0
    uneven_at_s: float | None = None
    owed: bool = False
    overdue_alone: bool = False
    ranks: tuple[RankProgress, ...] = ()
    asked_rank: int | None = None
    prompts: RecentPrompts = field(default_factory=RecentPrompts)

    def stall_limit_s(self, probe: ProbeSettings) -> float:
        """Longest standstill with requests in flight that is not a hang."""
        return self._limit_s(probe, prefilling=self.prefilling, step_s=self.own_step_s or self.longest_step_s)

    def unusual_standstill_since_s(self, at_s: float, probe: ProbeSettings) -> float | None:
        """Since when the engine stands still although its recent prompts took short steps; None if it does not.

        A long prompt may be the first of its kind, so one such engine is not hung. Several at once are.
        """
        since_s = self.stalled_since_s
        if since_s is None or not self.others or at_s - since_s < probe.decode_stall_s:
            return None
        usual = self.prompts.counted >= _USUAL_PROMPTS and self.longest_step_s <= _DECODE_STEP_S
        return since_s if usual and not self.progressed else None

    @property
    def work(self) -> TokenWork | None:
        """What the engine has done for others than this prober since it started; None before its counters."""
        counters, own = self.counters, self.answered_canaries
        if counters is None:
            return None
        return TokenWork(
            prompt_tokens=max(0, int(counters.prompt_tokens) - own * CANARY_PROMPT_TOKENS),
            generation_tokens=max(0, int(counters.generation_tokens) - own),
            finished=max(0, int(counters.finished) - own),
        )

    @property
    def own_step_s(self) -> float:
        """``prompt_step_s`` while steps are even, else 0: on a machine that stalls it bounds no step."""
        if self.looked_at_s is None or self.uneven_at_s is None:
            return self.prompt_step_s
        return self.prompt_step_s if self.looked_at_s - self.uneven_at_s >= _STEP_MEMORY_S else 0.0

    def rank_limit_s(self, rank: RankProgress, probe: ProbeSettings) -> float:
        """Longest standstill of one rank with work that is not a hang."""
        return self._limit_s(probe, prefilling=rank.prefilling, step_s=self.longest_step_s)

    def hung_rank_since_s(self, rank: RankProgress, at_s: float, probe: ProbeSettings) -> float | None:
        """Since when one rank hangs; None if it does not."""
        limit_s = self.rank_limit_s(rank, probe)
        return rank.hung_since_s(at_s, limit_s=limit_s, idle_limit_s=max(self.canary_limit_s(probe), limit_s))

    def _limit_s(self, probe: ProbeSettings, *, prefilling: bool, step_s: float) -> float:
        if probe.stall_after_s is not None or not prefilling:
            return probe.decode_stall_s
        return prefill_limit_s(step_s)

    def canary_limit_s(self, probe: ProbeSettings) -> float:
        """Longest time to wait for a canary: a slow engine must not look hung."""
        slow_s = min(_HUNG_CANARY_S, _HUNG_CANARY * (self.usual_canary_s or 0.0))
        return max(probe.timeout_s, slow_s)

    def idle_limit_s(self, probe: ProbeSettings) -> float:
        """Longest time for one token with nothing else in flight.

        Without a count of requests an unseen prefill may be running; one whose client left may be too.
        """
        if probe.stall_after_s is not None or self.surely_idle:
            return self.canary_limit_s(probe)
        return max(self.canary_limit_s(probe), self.stall_limit_s(probe))

    @property
    def surely_idle(self) -> bool:
        """Whether nothing but a canary is in flight, by a count of requests that works."""
        return self.counted and (self.overdue_alone or not self.owed)

    @property
    def silent_since_s(self) -> float | None:
        """Since when a canary is unanswered and no token advanced; None if none is."""
        return (
            None if self.unanswered_since_s is None else max(self.unanswered_since_s, self.progressed_at_s or 0.0)
        )

    def next_limit_s(self, at_s: float, probe: ProbeSettings) -> float | None:
        """Next time at which a standstill, or silence after a failed canary, exceeds its limit; None without."""
        silent_since_s = self.silent_since_s if self.canary_failed else None
        limits = [
            since_s + limit_s
            for since_s, limit_s in (
                (self.stalled_since_s, probe.decode_stall_s),
                (self.stalled_since_s, self.stall_limit_s(probe)),
                (silent_since_s, self.idle_limit_s(probe)),
                *((rank.stalled_since_s, self.rank_limit_s(rank, probe)) for rank in self.ranks),
            )
            if since_s is not None
        ]
        return min((due_s for due_s in limits if due_s > at_s), default=None)

    @property
    def rank_labels(self) -> tuple[str, ...]:
        """Names of the data-parallel ranks; empty if there is one."""
        return tuple(rank.counters.rank for rank in self.ranks)

    def suspects_pause(self, at_s: float) -> bool:
        """Whether a pause by order may explain that no token comes."""
        quiet_since_s = self.stalled_since_s
        if quiet_since_s is None:
            quiet_since_s = self.progressed_at_s if self.others else self.unanswered_since_s
        return bool(self.pause) or (quiet_since_s is not None and at_s - quiet_since_s >= _PAUSE_AFTER_S)

    @property
    def saturated(self) -> bool:
        """Whether a new request would queue."""
        if self.counters is None:
            return False
        own = 1 if self.asked_at_s is not None else 0
        return self.counters.waiting > own or self.counters.running - own >= self.slots or self.cache_full

    @property
    def cache_full(self) -> bool:
        """Whether the KV cache is full; room returns as requests finish."""
        usage = None if self.counters is None else self.counters.kv_cache_usage_ratio
        return usage is not None and usage >= KV_FULL_RATIO

    @property
    def recovering(self) -> bool:
        """Whether canaries failed or were slow recently, so that more are worth sending.

        An agent does not know that its engine was ejected for being slow. But its canaries were slow then too, and
        the first quick one returns the engine to rotation.
        """
        return (self.canary_failed or self.slow_canaries > 0) and not self.saturated

    @property
    def suspects_rank(self) -> bool:
        """Whether a rank stands still with work, which a canary addressed to it clears up."""
        return bool(self.ranks) and self.looked_at_s is not None and self._suspected(self.looked_at_s) is not None

    def wants_canary(self, *, good: bool) -> bool:
        """Whether to send a canary now; ``good`` is the current verdict."""
        if self.asked_at_s is not None:
            return False
        if self.trouble is not None and (self.trouble.gone or self.trouble.unproved):
            return False
        return self.suspects_rank or not (good and self.progressed and self.saturated)

    def canary_sent(self, at_s: float) -> "ProbeState":
        """The state with a canary sent at ``at_s``, addressed to ``asked_rank`` of the result."""
        since = self.unanswered_since_s
        sent = replace(self, asked_at_s=at_s, unanswered_since_s=at_s if since is None else since)
        if not self.ranks:
            return replace(sent, asked_rank=None)
        place = self._suspected(at_s)
        if place is None:
            place = 0 if self.asked_rank is None else (self.asked_rank + 1) % len(self.ranks)
        ranks = tuple(rank.with_canary(at_s) if turn == place else rank for turn, rank in enumerate(self.ranks))
        return replace(sent, asked_rank=place, ranks=ranks)

    def _suspected(self, at_s: float) -> int | None:
        return suspected_rank(self.ranks, at_s, -1 if self.asked_rank is None else self.asked_rank)


def prefill_limit_s(longest_step_s: float) -> float:
    """Longest standstill of a prefill that is not a hang, after steps of up to ``longest_step_s``.

    Each chunk of a prompt reads the context of the chunks before it, so steps grow by a constant: less than the
    first step, which ``PREFILL_STALL_S`` limits.
    """
    return PREFILL_STALL_S + longest_step_s


def after_metrics(before: ProbeState, look: MetricsReading) -> ProbeState:
    """The state after a metrics reading."""
    if isinstance(look.counters, ProbeFailure):
        unsure = look.counters.trouble in (ProbeFailureReason.SILENT, ProbeFailureReason.OURS)
        if unsure and (before.heard_at_s is not None or look.counters.trouble is ProbeFailureReason.OURS):
            # Keep the facts while the silence may be an accident.
            return replace(before, looked_at_s=look.at_s, trouble=look.counters, progressed=False)
        if look.counters.gone:
            # The next process at this address starts without history.
            return ProbeState(
                slots=before.slots,
                looked_at_s=look.at_s,
                heard_at_s=before.heard_at_s,
                trouble=look.counters,
            )
        return replace(
            before,
            looked_at_s=look.at_s,
            # An engine that never answered is silent since the first probe.
            heard_at_s=look.at_s if look.counters.spoke else (before.heard_at_s or look.at_s),
            trouble=look.counters,
            # No canary is sent without a valid certificate.
            answer=None if look.counters.unproved else before.answer,
            progressed=False,
            counters=None,
            in_flight=look.in_flight,
            errored=look.errored,
            others=0,
            ranks=(),
            stalled_since_s=None,
        )
    if before.pause and look.pause == "":
        before = restart_timers(before, look.at_s)  # it resumes: its stall begins now
    fresh, known = look.counters, before.counters
    reborn = known is not None and (
        fresh.tokens < known.tokens
        or (None not in (fresh.started_at_s, known.started_at_s) and fresh.started_at_s != known.started_at_s)
    )
    own = 1 if before.asked_at_s is not None else 0
    others = max(0, fresh.running + fresh.waiting - own, (look.in_flight or 0) - own)
    progressed = known is not None and not reborn and fresh.tokens > known.tokens
    if progressed and known is not None and not others and not before.others:
        # Tokens of earlier canaries are not progress: the engine may have stopped since.
        progressed = fresh.generation_tokens - known.generation_tokens > before.answered_since_look
    counted = not look.partial and ((before.counted and not reborn) or bool(look.in_flight))
    paused = before.pause if look.pause is None else look.pause
    if known is not None and not reborn and not paused and (not counted or before.others):
        # Only a scheduler step changes these: with requests in flight any change is progress. Exception: a paused
        # core takes requests out whose clients left, such as a canary after its timeout.
        progressed = progressed or fresh.ranks != known.ranks
    pending = _pending(before, look, fresh, others + own, reborn=reborn)
    ranks = _ranks(before, look, fresh, others=others, prefilling=_may_prefill(look, fresh, pending, own, counted))
    prompt_step_s = _prompt_step_s(before, look, fresh, own, others=others, counted=counted, progressed=progressed)
    return replace(
        _longest_step(before, look, ranks, progressed=progressed),
        prompt_step_s=prompt_step_s,
        uneven_at_s=look.at_s if _uneven(before.prompt_step_s, prompt_step_s) else before.uneven_at_s,
        looked_at_s=look.at_s,
        heard_at_s=look.at_s,
        trouble=None,
        counters=fresh,
        in_flight=look.in_flight,
        errored=look.errored,
        pause="" if progressed or reborn else (before.pause if look.pause is None else look.pause),
        answered_since_look=0,
        answered_canaries=0 if reborn else before.answered_canaries,
        others=others,
        progressed=progressed,
        progressed_at_s=look.at_s if progressed else (None if reborn else before.progressed_at_s),
        stalled_since_s=None if progressed or not others else _stalled_since_s(before, look.at_s),
        tokens_per_s=_tokens_per_s(before, look.at_s, fresh) if progressed else 0.0,
        token_seen=fresh.tokens > 0 or (before.token_seen and not reborn),
        # Full and progressing: an older canary answer is outdated.
        answer=None if progressed and _outdated(before, fresh, own) else before.answer,
        shed_since_s=None if progressed or others else before.shed_since_s,
        counted=counted,
        **_pending_window(before, look.at_s, pending),
        prefilling=_prefilling(
            before,
            fresh,
            pending,
            look=look,
            own=own,
            others=others,
            counted=counted,
            progressed=progressed,
        ),
        # vLLM schedules one step ahead: a prompt whose client left may be in the next one, too.
        owed=bool(others or before.others) or (before.owed and not progressed),
        overdue_alone=not progressed and (before.overdue_alone or _overdue(before, look, counted, others)),
        ranks=ranks,
        prompts=before.prompts.after(
            look.at_s, fresh.finished if fresh.first_tokens is None else fresh.first_tokens
        ),
    )


def after_canary(before: ProbeState, answer: CanaryReading) -> ProbeState:
    """The state after a canary has ended."""
    failure = answer.failure
    ended = replace(before, asked_at_s=None, ranks=_ranks_after_canary(before, failure))
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
            answered_canaries=before.answered_canaries + 1,
            owed=False,
            overdue_alone=False,
            unanswered_since_s=None,
            answer=None,
            pause="",
            cuts_in_row=0,
            shed_since_s=None,
            canary=CanaryResults(in_row=in_row, at_s=answer.at_s, took_s=took_s),
            canary_failed=before.canary_failed and in_row < RECOVERED_CANARIES,
            usual_canary_s=took_s if usual_s is None else min(took_s, usual_s * _USUAL_GROWS),
            slow_canaries=RECOVERED_CANARIES if slow else max(0, before.slow_canaries - 1),
        )
    if before.looked_at_s is not None and before.looked_at_s >= answer.sent_at_s:
        # The last reading counted this canary, which will not get a first token.
        in_flight = None if ended.in_flight is None else max(0, ended.in_flight - 1)
        ended = replace(ended, pending=max(0.0, ended.pending - 1), in_flight=in_flight)
    if failure.trouble is not ProbeFailureReason.OURS and not failure.shed:
        # Shedding is neither a failure nor a proof.
        known = ended.canary
        ended = replace(ended, canary=known and replace(known, in_row=0), canary_failed=True)
    if failure.trouble is ProbeFailureReason.SILENT:
        return replace(ended, progressed=False, answer=None, shed_since_s=None)
    if failure.trouble is ProbeFailureReason.OURS:
        return replace(restart_timers(ended, answer.at_s), progressed=False, unanswered_since_s=None)
    if failure.trouble is ProbeFailureReason.REFUSED:
        return after_metrics(ended, MetricsReading(at_s=answer.at_s, counters=failure))
    if failure.trouble is ProbeFailureReason.CUT:
        # Once may be a race with the engine closing a kept-alive connection; twice is not.
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


def restart_timers(before: ProbeState, at_s: float) -> ProbeState:
    """Restart all timers: unobserved time is not evidence."""
    return replace(
        before,
        heard_at_s=None if before.heard_at_s is None else at_s,
        stalled_since_s=None if before.stalled_since_s is None else at_s,
        unanswered_since_s=None if before.unanswered_since_s is None else at_s,
        shed_since_s=None if before.shed_since_s is None else at_s,
        ranks=tuple(rank.with_timers_from(at_s) for rank in before.ranks),
    )


def _ranks(
    before: ProbeState, look: MetricsReading, fresh: VllmCounters, *, others: int, prefilling: bool
) -> tuple[RankProgress, ...]:
    """Progress of each data-parallel rank; empty if there is one."""
    if len(fresh.ranks) < 2:
        return ()
    # The count of one API process among several misses requests, so each may be a prefill.
    partial = look.partial or look.in_flight is None or look.in_flight < fresh.running + fresh.waiting
    return after_rank_reading(
        before.ranks,
        fresh.ranks,
        RankReading(
            at_s=look.at_s,
            last_at_s=before.looked_at_s,
            asked_rank=None if before.asked_at_s is None else before.asked_rank,
            prefilling=partial or prefilling,
            arriving=partial or bool(others if look.long_prompts is None else look.long_prompts),
        ),
    )


def _ranks_after_canary(before: ProbeState, failure: ProbeFailure | None) -> tuple[RankProgress, ...]:
    """The ranks after the end of a canary: a token clears its rank, silence adds to the evidence."""
    if failure is not None and failure.trouble is ProbeFailureReason.SILENT:
        return before.ranks
    return tuple(
        rank
        if place != before.asked_rank
        else rank.after_token()
        if failure is None
        else replace(rank, unanswered_since_s=None)
        for place, rank in enumerate(before.ranks)
    )


def _stalled_since_s(before: ProbeState, at_s: float) -> float:
    """Since when requests in flight make no progress."""
    if before.stalled_since_s is not None:
        return before.stalled_since_s
    seen_s = before.looked_at_s if before.others and before.looked_at_s is not None else at_s
    return max(seen_s, before.progressed_at_s or seen_s)


def _pending(before: ProbeState, look: MetricsReading, fresh: VllmCounters, most: int, *, reborn: bool) -> float:
    """Upper estimate of requests without a first token, the own canary included; at most ``most``."""
    known = before.counters
    if known is None or reborn or fresh.first_tokens is None or known.first_tokens is None:
        pending = float(most)
    else:
        count, earlier = look.in_flight, before.in_flight
        if count is None or earlier is None:
            count, earlier = fresh.running + fresh.waiting, known.running + known.waiting
        # A client that leaves hides one that comes. Its prefill, if long, shows in the steps.
        arrived = count - earlier + fresh.finished - known.finished
        pending = max(0.0, before.pending + arrived - (fresh.first_tokens - known.first_tokens))
    return min(pending, float(most), float(most if look.unstarted is None else look.unstarted))


def _pending_window(before: ProbeState, at_s: float, pending: float) -> "_PendingWindow":
    """Remove the part of ``pending`` that stayed for the whole window."""
    low, since_s = min(pending, before.pending_low), before.pending_low_since_s
    if since_s is None:
        return {"pending": pending, "pending_low": pending, "pending_low_since_s": at_s}
    if at_s - since_s < _PENDING_WINDOW_S:
        return {"pending": pending, "pending_low": low, "pending_low_since_s": since_s}
    return {"pending": pending - low, "pending_low": pending - low, "pending_low_since_s": at_s}


class _PendingWindow(TypedDict):
    pending: float
    pending_low: float
    pending_low_since_s: float


def _prefilling(
    before: ProbeState,
    fresh: VllmCounters,
    pending: float,
    *,
    look: MetricsReading,
    own: int,
    others: int,
    counted: bool,
    progressed: bool,
) -> bool:
    """Whether a prefill may be running since the last progress."""
    long_prompts = look.long_prompts
    if not counted and long_prompts is None:
        return True
    if progressed:
        since_s = before.stalled_since_s
        chunk = since_s is not None and look.at_s - since_s > _DECODE_STEP_S
        return chunk or _may_prefill(look, fresh, pending, own, counted)
    if not others and long_prompts is not None:
        return long_prompts > 0 or (before.owed and before.prefilling)
    # Work for an idle engine begins with a prefill.
    return before.prefilling or bool(others and not before.others and long_prompts != 0)


def _may_prefill(look: MetricsReading, fresh: VllmCounters, pending: float, own: int, counted: bool) -> bool:
    """Whether a request in flight may be a prefill that takes longer than a decode step."""
    if look.long_prompts is not None:
        # Short prompts take no longer than a decode step, however many wait.
        return look.long_prompts > 0
    return not counted or pending > own or fresh.waiting > own


def _overdue(before: ProbeState, look: MetricsReading, counted: bool, others: int) -> bool:
    """Whether a canary is late on an engine that has nothing else to do."""
    if not counted or others or before.owed or before.asked_at_s is None:
        return False
    allowed_s = max(_OVERDUE_S, _OVERDUE_CANARY * (before.usual_canary_s or 0.0))
    return look.at_s - before.asked_at_s >= allowed_s


def _longest_step(
    before: ProbeState, look: MetricsReading, ranks: Sequence[RankProgress], *, progressed: bool
) -> ProbeState:
    """The state with the time since the last progress, if that was the longest step recently."""
    since_s = before.stalled_since_s if not ranks else longest_standstill_since_s(before.ranks, ranks)
    if (
        not ranks
        and since_s is None
        and not before.counted
        and before.counters is not None
        and before.counters.running
    ):
        since_s = before.progressed_at_s
    if not progressed or since_s is None or look.late:
        return before
    step_s = look.at_s - since_s
    longest_s = before.longest_step_s if look.at_s - before.longest_step_at_s < _STEP_MEMORY_S else 0.0
    if step_s < longest_s or _was_hang(step_s, longest_s):
        return before if longest_s else replace(before, longest_step_s=0.0)
    return replace(before, longest_step_s=step_s, longest_step_at_s=look.at_s)


def _prompt_step_s(
    before: ProbeState,
    look: MetricsReading,
    fresh: VllmCounters,
    own: int,
    *,
    others: int,
    counted: bool,
    progressed: bool,
) -> float:
    """Longest step so far of the only prompt being read; 0 if unknown.

    Without it a hang in small chunks would be given the time of an earlier prompt's large ones. Another prompt may
    start with a cached prefix, thus with a long step.
    """
    known, asked = before.counters, before.unanswered_since_s is not None
    if not others or known is None or fresh.prompt_tokens != known.prompt_tokens:
        return 0.0  # prompt tokens count at the end of a prompt
    if not progressed or look.late:
        return before.prompt_step_s
    since_s = before.progressed_at_s if before.prompt_step_s else before.stalled_since_s
    if since_s is None or not _one_prompt(look, fresh, counted=counted, canaries=1 if asked else own):
        return 0.0
    step_s = look.at_s - since_s
    if _was_hang(step_s, before.longest_step_s) or not (before.prompt_step_s or step_s > _DECODE_STEP_S):
        return 0.0
    return max(before.prompt_step_s, step_s)


def _uneven(before_s: float, now_s: float) -> bool:
    """Whether a prompt's longest step grew by more than its context explains."""
    return bool(before_s) and now_s >= max(before_s + _UNEVEN_S, _UNEVEN * before_s)


def _one_prompt(look: MetricsReading, fresh: VllmCounters, *, counted: bool, canaries: int) -> bool:
    """Whether at most one long prompt can be in the next step.

    ``canaries`` may wait: one in flight, or one given up that the engine drops at its next step.
    """
    if look.long_prompts is not None:
        return look.long_prompts == 1
    unscheduled = max(look.in_flight or 0, fresh.running + fresh.waiting) - fresh.running
    return counted and unscheduled <= canaries


def _was_hang(step_s: float, longest_s: float) -> bool:
    """Whether a step after steps of up to ``longest_s`` was too long for a step."""
    return step_s > min(_LONGEST_STEP_S, _HANG_FACTOR * prefill_limit_s(longest_s))


def _tokens_per_s(before: ProbeState, at_s: float, fresh: VllmCounters) -> float | None:
    if before.counters is None or before.looked_at_s is None or at_s <= before.looked_at_s:
        return None
    return (fresh.tokens - before.counters.tokens) / (at_s - before.looked_at_s)


def _outdated(before: ProbeState, fresh: VllmCounters, own: int) -> bool:
    full = fresh.waiting > own or fresh.running - own >= before.slots
    return full and before.answer is not None and not (before.answer.draining or before.answer.refusal)
