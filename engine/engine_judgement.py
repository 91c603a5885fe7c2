"""From timestamped readings to a verdict: is this engine producing tokens, and if not, whose fault is that?

One rule carries most of it: *whoever holds work must move*. Tokens read plus tokens written grow whenever an
engine does anything, so an engine that holds requests while that sum stands still for ``stall_after_s`` is hung,
and one whose sum grows is alive however long its queue. Neither a socket nor ``/health`` proves anything.

During a real hang the engine's own gauges freeze too, at zero if it was idle. So the prober brings work of its
own, one token at a time: a canary. It is sent whenever it does not queue behind others (a free slot, or nothing
moving), and is itself a request in flight that is known to exist. No verdict of *hung* is given on gauges alone
while a canary can be asked: a gauge that got stuck on a living engine must not take it out.

Everything here is a pure fold over readings; the clock comes with them. ``books`` keeps what is known and
``findings`` says what that amounts to; here it becomes a verdict that holds, and the pace of looking follows it.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.engine_finding import EngineFinding, engine_finding
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailureReason
from engine.probe_settings import ProbeSettings
from engine.probe_state import ProbeState, after_canary, after_metrics, restart_timers
from engine.report import Doubt, EngineReport, Verdict

# A second opinion soon after the first bad look: one lost packet must not eject, and must not cost an interval.
CONFIRM_S: Final = 0.1
# Recovery that is noticed late is the expensive kind of lateness: engines that are out are looked at this often.
EJECTED_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJudgement:
    """What one engine is taken for after some readings, and the books that it was read from.

    ``finding`` is None until something is certain. ``fresh`` says whether the last reading decided anything:
    only then is there something to report.
    """

    books: ProbeState
    finding: EngineFinding | None = None
    fresh: bool = False
    doubt: Doubt | None = None
    good_in_row: int = 0
    bad_in_row: int = 0

    @property
    def verdict(self) -> Verdict | None:
        """The verdict; None until something is certain."""
        return None if self.finding is None else self.finding.verdict

    @property
    def evidence(self) -> str:
        """One sentence on why; empty without a verdict."""
        return "" if self.finding is None else self.finding.sentence

    @property
    def wants_canary(self) -> bool:
        """Whether to ask for a token now: never behind the work of others, always when nothing moves."""
        return self.books.wants_canary(good=self.verdict is not None and self.verdict.good)

    def canary_sent(self, at_s: float) -> "EngineJudgement":
        """The judgement while a canary sent at ``at_s`` is out."""
        return replace(self, books=self.books.canary_sent(at_s), fresh=False)

    def after(self, reading: MetricsReading | CanaryReading, probe: ProbeSettings) -> "EngineJudgement":
        """The judgement with one more reading."""
        if isinstance(reading, MetricsReading):
            books = after_metrics(
                restart_timers(self.books, reading.at_s) if reading.late else self.books, reading
            )
        else:
            books = after_canary(self.books, reading)
        finding = engine_finding(books, reading.at_s, probe)
        if finding is None or _silent(reading):
            # A silence alone decides nothing: what the counters say at that moment does, and they are read next.
            return replace(self, books=books, fresh=False)
        verdict = finding.verdict
        fresh = not (isinstance(reading, MetricsReading) and verdict is self.verdict and _repeats(books, verdict))
        return EngineJudgement(
            books=books,
            finding=finding,
            fresh=fresh,
            doubt=_doubt(books, verdict),
            good_in_row=self.good_in_row + fresh if verdict.good else 0,
            bad_in_row=0 if verdict.good else self.bad_in_row + fresh,
        )

    def pause_s(self, at_s: float, probe: ProbeSettings) -> float:
        """Seconds until the next look is due: sooner when it may confirm or change something."""
        good = self.verdict is not None and self.verdict.good and self.good_in_row >= probe.healthy_after
        if good and not self.books.recovering:
            pause_s = probe.interval_s
        elif 0 < self.bad_in_row < probe.unhealthy_after:
            pause_s = min(CONFIRM_S, probe.interval_s)
        else:
            pause_s = min(EJECTED_INTERVAL_S, probe.interval_s)
        stalled_since_s = self.books.stalled_since_s
        if stalled_since_s is not None and at_s < stalled_since_s + probe.stall_after_s:
            pause_s = min(pause_s, stalled_since_s + probe.stall_after_s - at_s)
        return pause_s

    def report(self, pool: str, engine: str, at_s: float, sequence: int) -> EngineReport | None:
        """What to tell the control plane; None when the last reading decided nothing."""
        if self.verdict is None or not self.fresh:
            return None
        counters = self.books.counters
        gauges = None if counters is None else counters.running + counters.waiting
        return EngineReport(
            pool=pool,
            engine=engine,
            verdict=self.verdict,
            evidence=self.evidence,
            observed_at_s=at_s,
            sequence=sequence,
            boot_id="" if counters is None or counters.started_at_s is None else f"{counters.started_at_s:.3f}",
            requests_in_flight=gauges if self.books.in_flight is None else self.books.in_flight,
            requests_waiting=None if counters is None else counters.waiting,
            kv_cache_usage_ratio=None if counters is None else counters.kv_cache_usage_ratio,
            tokens_per_s=self.books.tokens_per_s,
            doubt=self.doubt,
            canary=self.books.canary,
        )


def _silent(reading: MetricsReading | CanaryReading) -> bool:
    return (
        isinstance(reading, CanaryReading)
        and reading.failure is not None
        and reading.failure.trouble in (ProbeFailureReason.SILENT, ProbeFailureReason.OURS)
    )


def _repeats(now: ProbeState, verdict: Verdict) -> bool:
    """Whether a look that led to the same verdict only says again what a canary has said, or is about to say."""
    return now.answer is not None or (verdict.good and now.wants_canary(good=True))


def _doubt(now: ProbeState, verdict: Verdict) -> Doubt | None:
    """Which reading behind the verdict could be our own fault."""
    if verdict is Verdict.DEAD and now.trouble is not None and now.trouble.trouble is ProbeFailureReason.SILENT:
        return Doubt.SILENT
    refused = now.answer is not None and (now.answer.refusal or now.answer.unproved)
    if verdict is Verdict.DEGRADED and (refused or (now.trouble is not None and now.trouble.unproved)):
        return Doubt.REFUSED
    return None
