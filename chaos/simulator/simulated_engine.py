"""One engine in simulated time: the lab's simulated GPU and its faults, without sockets.

``chaos.fake_engine`` defines the effect of each fault; this module carries it out.
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
"""Tokens per stream event, as in the lab."""

_CACHE_TOKENS_PER_SLOT: Final = 4096


class ResponseSink(Protocol):
    """Receives the response of a call."""

    def headers(self, status: int, retry_after_s: float | None = None) -> None:
        """Response headers."""

    def tokens(self, total: int) -> None:
        """``total`` tokens of a stream have been sent."""

    def ended(self) -> None:
        """The answer is complete."""

    def failed_inside(self) -> None:
        """A started stream ends with an error event."""

    def reset(self) -> None:
        """The connection was reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """Parameters of a call, and its request id."""

    request_id: str
    number: int
    streaming: bool
    prompt_tokens: int
    max_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedCall:
    """One open call. ``tokens`` is the number sent; ``begun``: headers were sent."""

    id: int
    asked: EngineRequest
    sink: ResponseSink
    plan: ServeCall
    arrived_s: float
    tokens: int = 0
    begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCosts:
    """Token costs of this engine, including slowness."""

    prefill_token_s: float
    token_s: float


class CallRefusedError(Exception):
    """The connection was refused."""


class SimulatedEngine:
    """Proxies use ``call`` and ``leave``, agents ``probe``, faults ``set_fault`` and ``freeze``.

    ``on_attempt`` gets each closed call of a caller; calls without a request id are probes.
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
        """Called when its process ends: peers see the connection close at once."""

    @property
    def listening(self) -> bool:
        """Whether it accepts connections."""
        return not isinstance(self._acting, EngineCrash)

    @property
    def answers(self) -> bool:
        """Whether its process runs."""
        return self.listening and not self._frozen

    @property
    def health(self) -> HealthAnswer:
        """Answer of /health while the process runs."""
        return health_answer(self._acting)

    @property
    def boot(self) -> float:
        """Start time of its process."""
        return self._born_s

    # -- calls ---------------------------------------------------------------------------------------------

    def call(self, asked: EngineRequest, sink: ResponseSink) -> SimulatedCall | None:
        """Accept a call; None if refused with an answer. Raises CallRefusedError if nothing listens."""
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
        """The caller left: free its slot."""
        if self._calls.pop(call.id, None) is not None:
            progress = self._gpu.abort(call.id, self._timeline.now_s)
            self._book(call, Fate.ABORTED, "client left")
            self._deliver(progress)

    def probe(self) -> MetricsReading:
        """Current counters, as on /metrics and the in-flight page."""
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
        # A stopped GPU does not update its gauges.
        if self._gpu.rate > 0 or self._shown is None:
            self._shown = VllmCounters(
                generation_tokens=float(self._gpu.generated_tokens),
                prompt_tokens=float(self._gpu.prefilled_tokens),
                running=self._gpu.running,
                waiting=self._gpu.waiting,
                kv_cache_usage_ratio=self._cache_ratio(),
                started_at_s=self._born_s,
            )
        # Simulated prompts are short, and the gate reports it.
        return MetricsReading(at_s=now_s, counters=self._shown, in_flight=len(self._calls), long_prompts=0)

    def _cache_ratio(self) -> float:
        if isinstance(self._acting, EngineKvCacheFull) and self._calls:
            return 1.0
        return self._gpu.cached_tokens() / (self.slots * _CACHE_TOKENS_PER_SLOT)

    # -- faults --------------------------------------------------------------------------------------------

    def set_fault(self, fault: EngineFault | None) -> None:
        """Set the fault; None clears it."""
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
        """The process has exited after SIGTERM."""
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
            call.tokens = news.tokens
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
            call.tokens = news.tokens
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
                tokens_sent=call.tokens,
            )
        )
