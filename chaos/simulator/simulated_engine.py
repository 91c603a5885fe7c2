"""One engine in simulated time: the lab's simulated GPU and its faults, without sockets.

What an engine does to a call under a fault is said once, in ``chaos.fake_engine``; this only carries it out.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.fake_engine.engine_faults import (
    EngineCrash,
    EngineFault,
    EngineFlap,
    EngineKvCacheFull,
    EngineSigterm,
    HealthAnswer,
    RefuseCall,
    ServeCall,
    SteadyEngineFault,
    call_treatment,
    gpu_rate,
    health_answer,
    token_pace,
)
from chaos.fake_engine.simulated_gpu import GpuJob, JobProgress, SimulatedGpu
from chaos.history.history_events import AttemptRecord
from chaos.simulator.simulated_clock import SimulatedClock, TimerHandle
from engine.engine_readings import MetricsReading, ProbeFailure, ProbeFailureReason
from engine.vllm_metrics import VllmCounters

STREAM_INTERVAL: Final = 8
"""Tokens per event of a stream, as the lab's engines send them."""

_CACHE_TOKENS_PER_SLOT: Final = 4096


class ResponseSink(Protocol):
    """Who called, and hears what becomes of the call."""

    def headers(self, status: int, retry_after_s: float | None = None) -> None:
        """The answer begins."""

    def tokens(self, total: int) -> None:
        """So many tokens of a stream have been sent by now."""

    def ended(self) -> None:
        """The answer is whole."""

    def failed_inside(self) -> None:
        """A stream that has begun ends with an error event."""

    def reset(self) -> None:
        """The connection broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """What a call asks for, and of whom it is."""

    request_id: str
    number: int
    streaming: bool
    prompt_tokens: int
    max_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedCall:
    """One call that the engine holds. ``told`` tokens have been sent; ``begun``: its headers have."""

    id: int
    asked: EngineRequest
    sink: ResponseSink
    plan: ServeCall
    arrived_s: float
    told: int = 0
    begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCosts:
    """What work costs this engine, slowness included."""

    prefill_token_s: float
    token_s: float


class CallRefusedError(Exception):
    """Nobody listens there."""


class SimulatedEngine:
    """``call`` and ``leave`` are of proxies, ``probe`` is of agents, ``set_fault`` and ``freeze`` are of faults.

    ``on_attempt`` is told of each call of a caller when it is closed; calls without a request id are probes.
    """

    def __init__(
        self,
        timeline: SimulatedClock,
        name: str,
        slots: int,
        costs: TokenCosts,
        *,
        gate: bool,
        rng: random.Random,
        on_attempt: Callable[[AttemptRecord], None],
    ) -> None:
        self.name = name
        self.slots = slots
        self._timeline = timeline
        self._costs = costs
        self._gate = gate
        self._rng = rng
        self._on_attempt = on_attempt
        self._gpu = SimulatedGpu(slots=slots, now=timeline.now_s)
        self._born_s = timeline.now_s
        self._acting: SteadyEngineFault | EngineSigterm | None = None
        self._frozen = False
        self._calls: dict[int, SimulatedCall] = {}
        self._next = 0
        self._timer: TimerHandle | None = None
        self._script: TimerHandle | None = None
        self._shown: VllmCounters | None = None
        self.on_gone: list[Callable[[], None]] = []
        """Called when its process ends: who holds a connection to it sees that at once."""

    @property
    def listening(self) -> bool:
        """Whether connections are taken."""
        return not isinstance(self._acting, EngineCrash)

    @property
    def answers(self) -> bool:
        """Whether its process runs."""
        return self.listening and not self._frozen

    @property
    def health(self) -> HealthAnswer:
        """What /health says, where anybody answers."""
        return health_answer(self._acting)

    @property
    def boot(self) -> float:
        """When this life of it began."""
        return self._born_s

    # -- calls ---------------------------------------------------------------------------------------------

    def call(self, asked: EngineRequest, sink: ResponseSink) -> SimulatedCall | None:
        """Take a call; None where it was refused with an answer. RefusedError where nobody listens."""
        if not self.listening:
            raise CallRefusedError
        now_s = self._timeline.now_s
        plan = call_treatment(self._acting, self._rng.random(), asked.max_tokens)
        self._next += 1
        call = SimulatedCall(
            id=self._next,
            asked=asked,
            sink=sink,
            plan=plan if isinstance(plan, ServeCall) else ServeCall(),
            arrived_s=now_s,
        )
        if isinstance(plan, RefuseCall) and not self._frozen:
            self._book(call, Fate.SHED, plan.message)
            sink.headers(plan.status, plan.retry_after_s)
            sink.ended()
            return None
        job = GpuJob(
            prefill_s=self._costs.prefill_token_s * asked.prompt_tokens,
            token_s=self._costs.token_s,
            tokens=asked.max_tokens
            if call.plan.reset_after is None
            else min(call.plan.reset_after, asked.max_tokens),
            prompt_tokens=asked.prompt_tokens,
            report_every=STREAM_INTERVAL if asked.streaming else 0,
            stall_after=call.plan.stall_after,
        )
        self._calls[call.id] = call
        progress = self._gpu.submit(call.id, job, now_s)
        if asked.streaming and not self._gate and not self._frozen:
            call.begun = True
            sink.headers(200)
        self._deliver(progress)
        return call

    def leave(self, call: SimulatedCall) -> None:
        """The caller is gone; its slot is free."""
        if self._calls.pop(call.id, None) is not None:
            progress = self._gpu.abort(call.id, self._timeline.now_s)
            self._book(call, Fate.ABORTED, "client left")
            self._deliver(progress)

    def probe(self) -> MetricsReading:
        """The counters, as whoever reads /metrics and the count of requests sees them now."""
        now_s = self._timeline.now_s
        if not self.listening:
            return MetricsReading(
                at_s=now_s, counters=ProbeFailure(trouble=ProbeFailureReason.REFUSED, detail="connection refused")
            )
        if self._frozen:
            return MetricsReading(
                at_s=now_s, counters=ProbeFailure(trouble=ProbeFailureReason.SILENT, detail="no answer")
            )
        self._deliver(self._gpu.advance(now_s))
        # A GPU that stands still has nothing new to say: the gauges stay as they were.
        if self._gpu.rate > 0 or self._shown is None:
            self._shown = VllmCounters(
                generation_tokens=float(self._gpu.generated_tokens),
                prompt_tokens=float(self._gpu.prefilled_tokens),
                running=self._gpu.running,
                waiting=self._gpu.waiting,
                kv_cache_usage_ratio=self._cache_ratio(),
                started_at_s=self._born_s,
            )
        return MetricsReading(at_s=now_s, counters=self._shown, in_flight=len(self._calls))

    def _cache_ratio(self) -> float:
        if isinstance(self._acting, EngineKvCacheFull) and self._calls:
            return 1.0
        return self._gpu.cached_tokens() / (self.slots * _CACHE_TOKENS_PER_SLOT)

    # -- faults --------------------------------------------------------------------------------------------

    def set_fault(self, fault: EngineFault | None) -> None:
        """From now on it misbehaves so; None heals it."""
        if self._script is not None:
            self._script.cancel()
            self._script = None
        if isinstance(fault, EngineFlap):
            self._flap(fault, bad=True)
        else:
            self._act(fault)
            if isinstance(fault, EngineSigterm):
                self._script = self._timeline.after(fault.shutdown_timeout_s + fault.listens_s, self._end)

    def freeze(self, frozen: bool) -> None:
        """SIGSTOP, or SIGCONT."""
        self._frozen = frozen
        self._pace()

    def _flap(self, flap: EngineFlap, *, bad: bool) -> None:
        self._act(flap.fault if bad else None)
        share = flap.bad_share if bad else 1 - flap.bad_share
        self._script = self._timeline.after(flap.period_s * share, lambda: self._flap(flap, bad=not bad))

    def _end(self) -> None:
        """The process that got a SIGTERM is gone."""
        self._act(EngineCrash())

    def _act(self, fault: SteadyEngineFault | EngineSigterm | None) -> None:
        was_dead = isinstance(self._acting, EngineCrash | EngineSigterm)
        self._acting = fault
        if isinstance(fault, EngineCrash) or (was_dead and not isinstance(fault, EngineSigterm)):
            self._lose("crash" if isinstance(fault, EngineCrash) else "restart")
            for gone in tuple(self.on_gone):
                gone()
        if was_dead and not isinstance(fault, EngineCrash | EngineSigterm):
            self._gpu = SimulatedGpu(slots=self.slots, now=self._timeline.now_s)
            self._born_s, self._shown = self._timeline.now_s, None
        self._pace()

    def _pace(self) -> None:
        now_s = self._timeline.now_s
        progress = self._gpu.set_rate(0.0 if self._frozen else gpu_rate(self._acting), now_s)
        wanted = token_pace(self._acting)
        progress += self._gpu.set_pace(wanted.factor, wanted.burst, now_s)
        if self._acting is None:
            progress += self._gpu.release_stalls(now_s)
        self._deliver(progress)

    def _lose(self, reason: str) -> None:
        for call in list(self._calls.values()):
            del self._calls[call.id]
            self._gpu.abort(call.id, self._timeline.now_s)
            self._book(call, Fate.FAILED, reason)
            call.sink.reset()

    # -- work ----------------------------------------------------------------------------------------------

    def _deliver(self, progress: list[JobProgress]) -> None:
        for news in progress:
            call = self._calls.get(news.job_id)
            if call is not None:
                self._tell(call, news)
        self._arm()

    def _tell(self, call: SimulatedCall, news: JobProgress) -> None:
        plan, sink, streaming = call.plan, call.sink, call.asked.streaming
        if streaming and plan.error_status is None:
            if not call.begun:
                call.begun = True
                sink.headers(200)
            call.told = news.tokens
            sink.tokens(news.tokens)
        if not news.finished or call.id not in self._calls:
            return
        del self._calls[call.id]
        if plan.reset_after is not None:
            self._book(call, Fate.FAILED, "reset")
            sink.reset()
        elif plan.error_status is not None:
            self._book(call, Fate.FAILED, f"error {plan.error_status} after the work")
            if call.begun:
                sink.failed_inside()
            else:
                sink.headers(plan.error_status)
                sink.ended()
        else:
            call.told = news.tokens
            self._book(call, Fate.FINISHED, "")
            if not call.begun:
                sink.headers(200)
            sink.ended()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._gpu.due_at()
        if due_s is not None:
            self._timer = self._timeline.at(due_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._deliver(self._gpu.advance(self._timeline.now_s))

    def _book(self, call: SimulatedCall, fate: Fate, reason: str) -> None:
        use = self._gpu.take_use(call.id)
        if not call.asked.request_id:
            return
        self._on_attempt(
            AttemptRecord(
                at_s=call.arrived_s - self._timeline.began_s,
                engine=self.name,
                request_id=call.asked.request_id,
                number=call.asked.number,
                streaming=call.asked.streaming,
                fate=fate,
                reason=reason,
                closed_at_s=self._timeline.now_s - self._timeline.began_s,
                started_at_s=None if use.started_at_s is None else use.started_at_s - self._timeline.began_s,
                slot_s=use.slot_s,
                tokens_generated=use.tokens,
                tokens_sent=call.told,
            )
        )
