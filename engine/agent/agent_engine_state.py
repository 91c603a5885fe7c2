"""All that the agent holds true of its engine: a fold over what it reads and what it is told to do.

The judge in ``engine.engine_judgement`` knows only the engine's answers. Here the rest is laid over them, hardest
first: no token can come (hung, dead), none has come yet (starting), none may come (draining), damage (degraded),
and otherwise ready or busy. Patience for soft evidence is here too, so that one odd answer changes nothing, and
each verdict keeps the moment since which it holds.

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
from engine.report import Verdict

# How long a queue must have been gone before busy becomes ready again; both take requests, so this is only calm.
CALM_S: Final = 1.0
# Slots of an engine that does not say how many it has: its queue alone tells that it is full.
_NO_SLOTS: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBoot:
    """One life of the engine's process. ``mark`` is its start by its own clock, where it says so.

    ``heard``: it answered. ``found_running``: it had produced tokens before the agent first saw it, so nothing is
    left to warm. ``warmed`` counts the warm-up prompts that are done.
    """

    number: int = 1
    mark: float | None = None
    heard: bool = False
    found_running: bool = False
    first_token: bool = False
    warmed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrder:
    """The engine was told to drain at ``since_s``, by ``deadline_s`` if it has one."""

    since_s: float
    deadline_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealthState:
    """What is known of one engine. ``findings`` is the verdict in force and all that speaks for one; empty at
    first.

    ``verdict_since_s`` is when that verdict began. ``finding`` is what the engine's answers amount to after
    patience, ``soft_in_row`` and ``good_in_row`` count what speaks against it, ``ready_since_s`` is when a queue
    was last seen to be gone. ``errors_since_s`` is since when too many requests fail, ``not_produced_since_s``
    since when no token comes. ``idle_readings`` counts looks in a row that found nothing in flight.
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
    gpu: GpuJudgement | None = None
    order: DrainOrder | None = None
    findings: tuple[EngineFinding, ...] = ()
    verdict_since_s: float = 0.0

    @classmethod
    def new(cls, config: AgentConfig, at_s: float) -> "EngineHealthState":
        """Nothing known yet."""
        return cls(begun_at_s=at_s, judgement=EngineJudgement(books=ProbeState(slots=config.slots or _NO_SLOTS)))

    @property
    def verdict(self) -> Verdict | None:
        """The verdict in force; None before anything is certain."""
        return self.findings[0].verdict if self.findings else None

    @property
    def produces(self) -> bool:
        """Whether the engine's answers say that tokens come, whatever else speaks against it."""
        return self.finding is not None and self.finding.verdict.good

    @property
    def in_flight(self) -> int | None:
        """Requests in flight other than the agent's own; None when that cannot be known now."""
        trouble = self.judgement.books.trouble
        if trouble is not None:
            return 0 if trouble.gone else None
        return None if self.judgement.books.counters is None else self.judgement.books.others

    def warm_up_left(self, config: AgentConfig) -> tuple[int, ...]:
        """Lengths of the warm-up prompts that are still to run."""
        return () if self.boot.found_running else config.warm_up[self.boot.warmed :]

    def canary_sent(self, at_s: float) -> "EngineHealthState":
        """While a one-token completion sent at ``at_s`` is out."""
        return replace(self, judgement=self.judgement.canary_sent(at_s))

    def after(self, reading: MetricsReading | CanaryReading, config: AgentConfig) -> "EngineHealthState":
        """With one more reading."""
        judgement = self.judgement.after(reading, config.probe)
        read = replace(self, judgement=judgement)
        if isinstance(reading, MetricsReading):
            read = _counted(_reborn(read, reading), reading, config)
        if judgement.books.token_seen and judgement.books.trouble is None:
            read = replace(read, boot=replace(read.boot, first_token=True))
        settled = _settled(read, reading.at_s, config)
        since_s = None if settled.produces else (self.not_produced_since_s or reading.at_s)
        return _composed(replace(settled, not_produced_since_s=since_s), reading.at_s, config)

    def warm_up_prompt_done(self, at_s: float, config: AgentConfig) -> "EngineHealthState":
        """With one warm-up prompt done."""
        boot = replace(self.boot, warmed=self.boot.warmed + 1)
        return _composed(replace(self, boot=boot), at_s, config)

    def with_gpu(self, gpu: GpuJudgement, at_s: float, config: AgentConfig) -> "EngineHealthState":
        """With news of the GPUs."""
        return _composed(replace(self, gpu=gpu), at_s, config)

    def with_drain_order(self, order: DrainOrder | None, at_s: float, config: AgentConfig) -> "EngineHealthState":
        """Told to drain, or to take requests again."""
        return _composed(replace(self, order=order, idle_readings=0), at_s, config)


def _reborn(now: EngineHealthState, look: MetricsReading) -> EngineHealthState:
    """Begin a new boot when the look shows one."""
    if isinstance(look.counters, ProbeFailure):
        if look.counters.gone and now.boot.heard:
            # Whoever answers here next is another process.
            return replace(now, boot=EngineBoot(number=now.boot.number + 1))
        return now
    mark, boot = look.counters.started_at_s, now.boot
    if boot.heard and mark == boot.mark:
        return now
    if boot.heard:
        boot = EngineBoot(number=boot.number + 1)
    # A first life that has tokens already was at work before the agent came; a later one was seen to be born.
    found = boot.number == 1 and look.counters.generation_tokens > 0
    return replace(now, boot=replace(boot, mark=mark, heard=True, found_running=found), pressure=CounterWindow())


def _counted(now: EngineHealthState, look: MetricsReading, config: AgentConfig) -> EngineHealthState:
    """Keep the books of the window, and of what is in flight."""
    if not isinstance(look.counters, ProbeFailure):
        pressure = now.pressure.after(look.at_s, look.counters)
        share = config.error_percent / 100
        # To leave damage behind takes half of what it took to be in it.
        needed = share if now.errors_since_s is None else share / 2
        failing = pressure.finished >= config.error_requests and pressure.errors >= needed * pressure.finished
        since_s = (now.errors_since_s if now.errors_since_s is not None else look.at_s) if failing else None
        now = replace(now, pressure=pressure, errors_since_s=since_s)
    return replace(now, idle_readings=now.idle_readings + 1 if now.in_flight == 0 else 0)


def _settled(now: EngineHealthState, at_s: float, config: AgentConfig) -> EngineHealthState:
    """The finding after patience: hard evidence at once, soft evidence when it repeats."""
    found, held = now.judgement.finding, now.finding
    if found is None:
        return now
    if held is None or found.verdict is held.verdict or found.verdict.hard:
        return _adopted(now, found, at_s)
    if found.verdict.good and held.verdict.good:
        return _calmed(now, found, at_s)
    if not now.judgement.fresh:
        return now  # said before, and counted then
    good, soft = (now.good_in_row + 1, 0) if found.verdict.good else (0, now.soft_in_row + 1)
    if good >= config.healthy_after or soft >= config.unhealthy_after:
        return _adopted(now, found, at_s)
    return replace(now, good_in_row=good, soft_in_row=soft)


def _calmed(now: EngineHealthState, found: EngineFinding, at_s: float) -> EngineHealthState:
    """Busy at once, ready after a calm: both take requests."""
    since_s = at_s if now.ready_since_s is None else now.ready_since_s
    if found.verdict is Verdict.BUSY or at_s - since_s >= CALM_S:
        return _adopted(now, found, at_s)
    return replace(now, ready_since_s=since_s, soft_in_row=0)


def _adopted(now: EngineHealthState, found: EngineFinding, at_s: float) -> EngineHealthState:
    since_s = at_s if found.verdict is Verdict.READY else None
    return replace(now, finding=found, soft_in_row=0, good_in_row=0, ready_since_s=since_s)


def _composed(now: EngineHealthState, at_s: float, config: AgentConfig) -> EngineHealthState:
    """The verdict in force, of everything that is known."""
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


# What outdoes what. A starting engine that is also hung has not started; one that drains may well be hung. So may
# one that is dead by its GPUs: hung says that what it holds will get nothing, and is better tried elsewhere.
_RANK: Final = {
    verdict: rank
    for rank, verdict in enumerate(
        (
            Verdict.STARTING,
            Verdict.HUNG,
            Verdict.DEAD,
            Verdict.DRAINING,
            Verdict.DEGRADED,
            Verdict.BUSY,
            Verdict.READY,
        )
    )
}


def _of_start(now: EngineHealthState, at_s: float, config: AgentConfig) -> tuple[EngineFinding, ...]:
    """Why the engine has not started yet, if so."""
    if not now.boot.heard:
        trouble = now.judgement.books.trouble
        late = now.boot.number > 1 or at_s - now.begun_at_s >= config.start_limit_s
        if late or trouble is None or trouble.unproved:
            # It was there and is gone, or should have come long ago: dead, as its finding says. Or somebody is
            # there, and whether that is an engine which starts cannot be known.
            return ()
        return (
            EngineFinding(
                verdict=Verdict.STARTING,
                reading="connection",
                threshold=f"an engine within {config.start_limit_s:g} s",
                since_s=now.begun_at_s,
                sentence=f"no engine yet, for {at_s - now.begun_at_s:.0f} s: {trouble.detail}",
            ),
        )
    trouble = now.judgement.books.trouble
    if trouble is not None and (trouble.gone or trouble.unproved):
        return ()
    if not now.boot.first_token:
        return (
            EngineFinding(
                verdict=Verdict.STARTING,
                reading="tokens",
                threshold="a first token",
                sentence="has produced no token yet",
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
    """What speaks against the GPUs."""
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
            sentence="was told to finish what it has and to take nothing new",
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
            threshold=f"a share of failed requests over {WINDOW_S:g} s",
            since_s=now.errors_since_s,
            sentence=f"{pressure.errors:.0f} of {pressure.finished:.0f} requests failed in {WINDOW_S:g} s",
        ),
    )
