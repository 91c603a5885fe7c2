"""The agent's state of its engine: a fold over readings and drain requests.

``engine.engine_judgement`` knows only the engine's answers. This adds the rest, hardest first: no token possible
(hung, dead), no token yet (starting), drain (draining), damage (degraded), else ready or busy. Soft evidence must
repeat before it counts. Each verdict keeps its start time.

Pure: the time comes with each event.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from engine.agent.agent_config import AgentConfig
from engine.agent.counter_window import WINDOW_S, CounterWindow
from engine.engine_finding import EngineFinding
from engine.engine_judgement import EngineJudgement
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure
from engine.gpu.gpu_judgement import GpuJudgement
from engine.gpu.gpu_policy import GpuAction
from engine.probe_state import ProbeState
from engine.report import STANDSTILL_READING, Verdict
from engine.vllm_metrics import VllmCounters

# Seconds without a queue until busy becomes ready; both accept requests, so this only avoids flapping.
CALM_S: Final = 1.0
# Readings in a row with a count below running plus waiting: one or two are requests that ended in between.
_SHORT_COUNTS: Final = 3
# Slots of an engine that does not report them: only its queue shows that it is full.
_NO_SLOTS: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBoot:
    """One engine process. ``mark`` is its start time by its clock, if reported.

    ``heard``: it answered. ``found_running``: it had produced tokens before the agent started, so it needs no
    warm-up. ``warmed`` counts completed warm-up prompts.
    """

    number: int = 1
    mark: float | None = None
    heard: bool = False
    found_running: bool = False
    first_token: bool = False
    warmed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrder:
    """A drain since ``since_s``, until ``deadline_s`` if set."""

    since_s: float
    deadline_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealthState:
    """State of one engine. ``findings``: the verdict in force, then others with evidence; empty at first.

    ``verdict_since_s``: start of that verdict. ``finding``: from the engine's answers, debounced; ``soft_in_row``
    and ``good_in_row`` count contrary readings. ``ready_since_s``: since when no queue. ``errors_since_s``:
    since when too many requests fail. ``not_produced_since_s``: since when no token comes. ``idle_readings``:
    consecutive readings without requests in flight. ``short_counts``: consecutive readings whose count of requests
    was below the engine's gauges.
    """

    begun_at_s: float
    judgement: EngineJudgement = field(default_factory=lambda: EngineJudgement(books=ProbeState(slots=_NO_SLOTS)))
    boot: EngineBoot = field(default_factory=EngineBoot)
    pressure: CounterWindow = field(default_factory=CounterWindow)
    finding: EngineFinding | None = None
    not_produced_since_s: float | None = None
    ready_since_s: float | None = None
    soft_in_row: int = 0
    good_in_row: int = 0
    errors_since_s: float | None = None
    idle_readings: int = 0
    short_counts: int = 0
    gpu: GpuJudgement | None = None
    order: DrainOrder | None = None
    findings: tuple[EngineFinding, ...] = ()
    verdict_since_s: float = 0.0

    @classmethod
    def new(cls, config: AgentConfig, at_s: float) -> "EngineHealthState":
        """The initial state."""
        return cls(begun_at_s=at_s, judgement=EngineJudgement(books=ProbeState(slots=config.slots or _NO_SLOTS)))

    @property
    def verdict(self) -> Verdict | None:
        """The verdict in force; None until readings are conclusive."""
        return self.findings[0].verdict if self.findings else None

    @property
    def produces(self) -> bool:
        """Whether the engine produces tokens in its answers."""
        return self.finding is not None and self.finding.verdict.good

    @property
    def in_flight(self) -> int | None:
        """Requests in flight without the agent's own; None if unknown."""
        trouble = self.judgement.books.trouble
        if trouble is not None:
            return 0 if trouble.gone else None
        return None if self.judgement.books.counters is None else self.judgement.books.others

    @property
    def count_is_partial(self) -> bool:
        """Whether the count of requests is that of one API process among several.

        With several, vLLM reports no process start time. Then only a larger gauge or count is known.
        """
        books = self.judgement.books
        if books.counters is None or books.in_flight is None:
            return False
        return books.counters.started_at_s is None or self.short_counts >= _SHORT_COUNTS

    def warm_up_left(self, config: AgentConfig) -> tuple[int, ...]:
        """Lengths of the remaining warm-up prompts."""
        return () if self.boot.found_running else config.warm_up[self.boot.warmed :]

    def canary_sent(self, at_s: float) -> "EngineHealthState":
        """The state with a canary sent at ``at_s``."""
        return replace(self, judgement=self.judgement.canary_sent(at_s))

    def after(self, reading: MetricsReading | CanaryReading, config: AgentConfig) -> "EngineHealthState":
        """The state after one more reading."""
        judgement = self.judgement.after(reading, config.probe)
        read = replace(self, judgement=judgement)
        if isinstance(reading, MetricsReading):
            read = _counted(_reborn(read, reading, self.judgement.books.counters), reading, config)
        if judgement.books.token_seen and judgement.books.trouble is None:
            read = replace(read, boot=replace(read.boot, first_token=True))
        settled = _settled(read, reading.at_s, config)
        since_s = None if settled.produces else (self.not_produced_since_s or reading.at_s)
        return _composed(replace(settled, not_produced_since_s=since_s), reading.at_s, config)

    def warm_up_prompt_done(self, at_s: float, config: AgentConfig) -> "EngineHealthState":
        """The state after one more warm-up prompt."""
        boot = replace(self.boot, warmed=self.boot.warmed + 1)
        return _composed(replace(self, boot=boot), at_s, config)

    def with_gpu(self, gpu: GpuJudgement, at_s: float, config: AgentConfig) -> "EngineHealthState":
        """The state with a new GPU judgement."""
        return _composed(replace(self, gpu=gpu), at_s, config)

    def with_drain_order(self, order: DrainOrder | None, at_s: float, config: AgentConfig) -> "EngineHealthState":
        """The state after a drain or undrain."""
        return _composed(replace(self, order=order, idle_readings=0), at_s, config)


def _reborn(now: EngineHealthState, look: MetricsReading, known: VllmCounters | None) -> EngineHealthState:
    """Start a new boot if the reading shows one: another start time, or without one counters that restarted."""
    if isinstance(look.counters, ProbeFailure):
        if look.counters.gone and now.boot.heard:
            # The next answer comes from another process.
            return replace(now, boot=EngineBoot(number=now.boot.number + 1))
        return now
    mark, boot = look.counters.started_at_s, now.boot
    restarted = mark is None and known is not None and look.counters.tokens < known.tokens
    if boot.heard and mark == boot.mark and not restarted:
        return now
    if boot.heard:
        boot = EngineBoot(number=boot.number + 1)
    # A first process with tokens was running before the agent; later ones were observed from the start.
    found = boot.number == 1 and look.counters.generation_tokens > 0
    return replace(now, boot=replace(boot, mark=mark, heard=True, found_running=found), pressure=CounterWindow())


def _counted(now: EngineHealthState, look: MetricsReading, config: AgentConfig) -> EngineHealthState:
    """Update the counter window and the requests in flight."""
    if not isinstance(look.counters, ProbeFailure):
        pressure = now.pressure.after(look.at_s, look.counters)
        share = config.error_percent / 100
        # Hysteresis: leave at half the threshold.
        needed = share if now.errors_since_s is None else share / 2
        failing = pressure.finished >= config.error_requests and pressure.errors >= needed * pressure.finished
        since_s = (now.errors_since_s if now.errors_since_s is not None else look.at_s) if failing else None
        now = replace(now, pressure=pressure, errors_since_s=since_s)
        gauges = look.counters.running + look.counters.waiting
        short = look.in_flight is not None and look.in_flight < gauges
        now = replace(now, short_counts=now.short_counts + 1 if short else 0)
    return replace(now, idle_readings=now.idle_readings + 1 if now.in_flight == 0 else 0)


def _settled(now: EngineHealthState, at_s: float, config: AgentConfig) -> EngineHealthState:
    """Debounce: hard evidence counts at once, soft evidence when it repeats."""
    found, held = now.judgement.finding, now.finding
    if found is None:
        return now
    # A refused probe may be a key or model just being replaced.
    at_once = found.verdict.hard and found.verdict is not Verdict.MISCONFIGURED
    resumed = found.verdict.good and held is not None and held.verdict is Verdict.PAUSED
    if held is None or found.verdict is held.verdict or at_once or resumed:
        return _adopted(now, found, at_s)
    if found.verdict.good and held.verdict.good:
        return _calmed(now, found, at_s)
    if not now.judgement.fresh:
        return now  # repeated; already counted
    good, soft = (now.good_in_row + 1, 0) if found.verdict.good else (0, now.soft_in_row + 1)
    if good >= config.healthy_after or soft >= config.unhealthy_after:
        return _adopted(now, found, at_s)
    return replace(now, good_in_row=good, soft_in_row=soft)


def _calmed(now: EngineHealthState, found: EngineFinding, at_s: float) -> EngineHealthState:
    """Busy at once, ready after a delay; both accept requests."""
    since_s = at_s if now.ready_since_s is None else now.ready_since_s
    moves = now.finding is not None and now.finding.reading == STANDSTILL_READING
    if moves or found.verdict is Verdict.BUSY or at_s - since_s >= CALM_S:
        return _adopted(now, found, at_s)
    return replace(now, ready_since_s=since_s, soft_in_row=0)


def _adopted(now: EngineHealthState, found: EngineFinding, at_s: float) -> EngineHealthState:
    since_s = at_s if found.verdict is Verdict.READY else None
    return replace(now, finding=found, soft_in_row=0, good_in_row=0, ready_since_s=since_s)


def _composed(now: EngineHealthState, at_s: float, config: AgentConfig) -> EngineHealthState:
    """Compute the verdict in force from all evidence."""
    if now.finding is None:
        return now
    reasons = [
        *_of_start(now, at_s, config),
        *_of_gpu(now),
        *_of_order(now),
        *_of_errors(now),
        now.finding,
    ]
    deciding = min(reasons, key=lambda one: _RANK[one.verdict])
    others = tuple(one for one in reasons if one is not deciding)
    if deciding.verdict is Verdict.HUNG:
        why = next((one.sentence for one in others if one.verdict is Verdict.DEAD), "")
        deciding = replace(deciding, sentence=f"{deciding.sentence}; {why}") if why else deciding
    told = (deciding, *others)
    since_s = now.verdict_since_s if now.verdict is deciding.verdict else at_s
    return replace(now, findings=told, verdict_since_s=since_s)


# Precedence of verdicts. A starting engine that also seems hung has not started; a draining one may hang. So may
# one dead by its GPUs: hung means that its requests get no answer and should be retried elsewhere.
_RANK: Final = {
    verdict: rank
    for rank, verdict in enumerate(
        (
            Verdict.STARTING,
            Verdict.HUNG,
            Verdict.DEAD,
            Verdict.PAUSED,
            Verdict.DRAINING,
            Verdict.MISCONFIGURED,
            Verdict.DEGRADED,
            Verdict.BUSY,
            Verdict.READY,
        )
    )
}


def _of_start(now: EngineHealthState, at_s: float, config: AgentConfig) -> tuple[EngineFinding, ...]:
    """Why the engine has not started yet, if it has not."""
    if not now.boot.heard:
        trouble = now.judgement.books.trouble
        late = now.boot.number > 1 or at_s - now.begun_at_s >= config.start_limit_s
        if late or trouble is None or trouble.unproved:
            # Gone, or over its start limit: dead by its finding. Or a peer that may not be a starting engine.
            return ()
        return (
            EngineFinding(
                verdict=Verdict.STARTING,
                reading="connection",
                threshold=f"engine within {config.start_limit_s:g} s",
                since_s=now.begun_at_s,
                sentence=f"no engine for {at_s - now.begun_at_s:.0f} s: {trouble.detail}",
            ),
        )
    trouble = now.judgement.books.trouble
    refused = now.finding is not None and now.finding.verdict is Verdict.MISCONFIGURED
    if refused or (trouble is not None and (trouble.gone or trouble.unproved)):
        return ()
    if not now.boot.first_token:
        return (
            EngineFinding(
                verdict=Verdict.STARTING,
                reading="tokens",
                threshold="first token",
                sentence="no token yet",
            ),
        )
    left = now.warm_up_left(config)
    if left:
        return (
            EngineFinding(
                verdict=Verdict.STARTING,
                reading="warm_up",
                threshold=f"{len(config.warm_up)} warm-up prompts",
                sentence=f"{len(left)} of {len(config.warm_up)} warm-up prompts left, next of {left[0]} words",
            ),
        )
    return ()


_OF_ACTION: Final = {
    GpuAction.EJECT: Verdict.DEAD,
    GpuAction.DRAIN: Verdict.DRAINING,
    GpuAction.DEGRADE: Verdict.DEGRADED,
}


def _of_gpu(now: EngineHealthState) -> tuple[EngineFinding, ...]:
    """GPU evidence."""
    if now.gpu is None:
        return ()
    return tuple(
        EngineFinding(
            verdict=_OF_ACTION[one.action],
            reading=f"gpu.{one.signal}",
            threshold=f"{one.action} by policy",
            since_s=one.since_s,
            sentence=one.sentence,
        )
        for one in now.gpu.evidence
        if one.action in _OF_ACTION
    )


def _of_order(now: EngineHealthState) -> tuple[EngineFinding, ...]:
    if now.order is None:
        return ()
    return (
        EngineFinding(
            verdict=Verdict.DRAINING,
            reading="order",
            since_s=now.order.since_s,
            sentence="drain requested: finishes its requests, accepts no new ones",
        ),
    )


def _of_errors(now: EngineHealthState) -> tuple[EngineFinding, ...]:
    if now.errors_since_s is None:
        return ()
    pressure = now.pressure
    return (
        EngineFinding(
            verdict=Verdict.DEGRADED,
            reading="errors",
            threshold=f"failed share over {WINDOW_S:g} s",
            since_s=now.errors_since_s,
            sentence=f"{pressure.errors:.0f} of {pressure.finished:.0f} requests failed in {WINDOW_S:g} s",
        ),
    )
