"""Timestamped readings -> verdict on an engine.

Main rule: an engine with requests must make progress. Each scheduler step changes its counters: generated tokens
in a decode, the KV cache usage in a prefill. With requests in flight and no change for the stall limit it is hung;
with a change it is alive, however long its queue. Nothing changes within a step, so the limit depends on what may
be running: 1 s for decodes, 3 s for a prefill, more after long steps (``ProbeState.stall_limit_s``).
Neither an open socket nor ``/health`` proves anything.

During a hang the engine's gauges freeze too, at zero if it was idle. So the prober sends canaries: completions of
one token, sent when they need not queue (a free slot, or no progress). A canary is known to be in flight.
While canaries are possible, gauges alone never give *hung*: a stuck gauge must not eject a working engine.

A pure fold over readings, which carry their time. ``probe_state`` keeps the facts, ``engine_finding`` derives the
verdict; this module keeps it and sets the pace of probes.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.engine_finding import EngineFinding, engine_finding
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailureReason
from engine.probe_settings import ProbeSettings
from engine.probe_state import ProbeState, after_canary, after_metrics, restart_timers
from engine.report import STANDSTILL_READING, Doubt, EngineReport, Evidence, Verdict

# Repeat the probe soon after the first bad one: a lost packet must neither eject nor cost an interval.
CONFIRM_S: Final = 0.1
# Interval for ejected engines: late detection of recovery is expensive.
EJECTED_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJudgement:
    """Verdict on one engine after some readings, with its probe state.

    ``finding`` is None until readings are conclusive. ``fresh``: the last reading was conclusive, so report it.
    """

    books: ProbeState
    finding: EngineFinding | None = None
    fresh: bool = False
    doubt: Doubt | None = None
    good_in_row: int = 0
    bad_in_row: int = 0

    @property
    def verdict(self) -> Verdict | None:
        """The verdict; None until readings are conclusive."""
        return None if self.finding is None else self.finding.verdict

    @property
    def evidence(self) -> str:
        """Evidence in one sentence; empty without a verdict."""
        return "" if self.finding is None else self.finding.sentence

    @property
    def wants_canary(self) -> bool:
        """Whether to send a canary now: never behind other requests, always without progress."""
        return self.books.wants_canary(good=self.verdict is not None and self.verdict.good)

    def canary_sent(self, at_s: float) -> "EngineJudgement":
        """The judgement with a canary sent at ``at_s``."""
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
            # Silence alone is inconclusive: the counters decide, and are read next.
            return replace(self, books=books, fresh=False)
        verdict = finding.verdict
        repeats = isinstance(reading, MetricsReading) and verdict is self.verdict and _repeats(books, verdict)
        fresh = finding.reading == STANDSTILL_READING or not repeats
        return EngineJudgement(
            books=books,
            finding=finding,
            fresh=fresh,
            doubt=_doubt(books, verdict),
            good_in_row=self.good_in_row + fresh if verdict.good else 0,
            bad_in_row=0 if verdict.good else self.bad_in_row + fresh,
        )

    def pause_s(self, at_s: float, probe: ProbeSettings) -> float:
        """Seconds until the next probe; shorter while it may confirm or change the verdict."""
        good = self.verdict is not None and self.verdict.good and self.good_in_row >= probe.healthy_after
        pause_s = min(
            probe.interval_s if good and not self.books.recovering else EJECTED_INTERVAL_S, probe.interval_s
        )
        deciding_s = self.deciding_pause_s(at_s, probe)
        return pause_s if deciding_s is None else min(pause_s, deciding_s)

    def deciding_pause_s(self, at_s: float, probe: ProbeSettings) -> float | None:
        """Seconds until the probe that may confirm or change the verdict; None if none is due."""
        if 0 < self.bad_in_row < probe.unhealthy_after:
            return min(CONFIRM_S, probe.interval_s)
        due_s = self.books.next_limit_s(at_s, probe)
        return None if due_s is None else due_s - at_s

    @property
    def process(self) -> str:
        """Names the engine process by its start; empty if unknown."""
        counters = self.books.counters
        return "" if counters is None or counters.started_at_s is None else f"{counters.started_at_s:.3f}"

    def report(
        self, pool: str, engine: str, at_s: float, sequence: int, *, adapters: tuple[str, ...] | None = None
    ) -> EngineReport | None:
        """Report for the control plane; None if the last reading was inconclusive."""
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
            boot_id=self.process,
            requests_in_flight=gauges if self.books.in_flight is None else self.books.in_flight,
            requests_waiting=None if counters is None else counters.waiting,
            kv_cache_usage_ratio=None if counters is None else counters.kv_cache_usage_ratio,
            tokens_per_s=self.books.tokens_per_s,
            doubt=self.doubt,
            canary=self.books.canary,
            reasons=self._reasons(at_s),
            ranks=self.books.rank_labels,
            hung_ranks=() if self.finding is None else self.finding.hung_ranks,
            adapters=adapters,
        )

    def _reasons(self, at_s: float) -> tuple[Evidence, ...]:
        """Evidence against the engine; none of a good verdict but a standstill's."""
        if self.finding is None or (self.finding.verdict.good and self.finding.reading != STANDSTILL_READING):
            return ()
        return (self.finding.evidence(at_s),)


def _silent(reading: MetricsReading | CanaryReading) -> bool:
    return (
        isinstance(reading, CanaryReading)
        and reading.failure is not None
        and reading.failure.trouble in (ProbeFailureReason.SILENT, ProbeFailureReason.OURS)
    )


def _repeats(now: ProbeState, verdict: Verdict) -> bool:
    """Whether a metrics reading only repeats the verdict of a canary, past or due."""
    return now.answer is not None or (verdict.good and now.wants_canary(good=True))


def _doubt(now: ProbeState, verdict: Verdict) -> Doubt | None:
    """The reading behind the verdict that could be the prober's own fault."""
    if verdict is Verdict.DEAD and now.trouble is not None and now.trouble.trouble is ProbeFailureReason.SILENT:
        return Doubt.SILENT
    if verdict is Verdict.MISCONFIGURED:
        return Doubt.REFUSED
    if verdict is Verdict.DEGRADED and any(one is not None and one.unproved for one in (now.answer, now.trouble)):
        return Doubt.REFUSED
    return None
