"""One engine in simulated time: the lab's simulated GPU and its faults, without sockets.

``chaos.fake_engine`` defines the effect of each fault; this module carries it out.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.fake_engine.engine_config import EngineConfig
from chaos.fake_engine.engine_faults import (
    EngineAdapterLost,
    EngineCrash,
    EngineFault,
    EngineFlap,
    EngineKvCacheFull,
    EngineKvTransferStall,
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
from chaos.fake_engine.prefix_cache import PrefixCache
from chaos.fake_engine.simulated_gpu import GpuJob, JobProgress, SimulatedGpu
from chaos.history.history_events import AttemptRecord
from chaos.load.conversation_prompts import prompt_blocks
from chaos.simulator.simulated_clock import SimulatedClock, TimerHandle
from engine.engine_readings import MetricsReading, ProbeFailure, ProbeFailureReason
from engine.vllm_metrics import VllmCounters

STREAM_INTERVAL: Final = 8
"""Tokens per stream event, as in the lab."""

BLOCK_SIZE: Final = EngineConfig().block_size
_CACHE_TOKENS_PER_SLOT: Final = 4096
_KV_KEEP_S: Final = EngineConfig().kv_keep_s


_NO_ADAPTER: Final = RefuseCall(status=404, message="The adapter does not exist.", error_type="NotFoundError")


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
    """Parameters of a call, and its request id. ``remote_decode``: another engine will fetch its KV cache.

    ``session``: the conversation whose prompt it is; empty for a prompt that has nothing in common with others.
    """

    request_id: str
    number: int
    streaming: bool
    prompt_tokens: int
    max_tokens: int
    remote_decode: bool = False
    session: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedCall:
    """One open call. ``tokens`` is the number sent; ``begun``: headers were sent.

    ``prefilled``: another engine computed its prompt. ``blocks`` are those that it uses in the prefix cache, and
    ``cached_tokens`` the part of its prompt that it found there.
    """

    id: int
    asked: EngineRequest
    sink: ResponseSink
    plan: ServeCall
    arrived_s: float
    tokens: int = 0
    begun: bool = False
    prefilled: bool = False
    blocks: list[int] = field(default_factory=list)
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCosts:
    """Token costs of this engine, including slowness."""

    prefill_token_s: float
    token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProfile:
    """Slots, costs and gate of an engine. ``prefill_cache_tokens``: of a prefill engine, or None.

    ``kv_transfer_token_s``: time for each prompt token until another engine has a KV cache of it.
    ``prefix_cache_blocks``: size of the KV cache of an engine that finds blocks of earlier prompts in it, or None.
    ``adapter``: LoRA adapter that it has, and that all callers ask for; empty for none.
    """

    slots: int
    costs: TokenCosts
    gate: bool
    prefill_cache_tokens: int | None = None
    prefix_cache_blocks: int | None = None
    kv_transfer_token_s: float = 0.0
    adapter: str = ""


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
        profile: SimulatedProfile,
        *,
        rng: random.Random,
        on_attempt: Callable[[AttemptRecord], None],
    ) -> None:
        self.name = name
        self.slots = profile.slots
        self.timeline = timeline
        self._costs = profile.costs
        self._gate = profile.gate
        self._prefill_cache = profile.prefill_cache_tokens
        self._cache_blocks = profile.prefix_cache_blocks
        self._transfer_token_s = profile.kv_transfer_token_s
        self._adapter = profile.adapter
        self._prefixes = PrefixCache()
        self._rng = rng
        self._on_attempt = on_attempt
        self._gpu = SimulatedGpu(slots=profile.slots, now=timeline.now_s)
        self._queue: deque[tuple[int, GpuJob]] = deque()  # prompts that wait for a slot and for room in the cache
        self._awaiting: dict[int, GpuJob] = {}  # calls whose KV caches are on their way
        self._kept: dict[int, tuple[int, float]] = {}  # tokens of KV caches to be fetched, and until when
        self._fetches: dict[int, Callable[[bool], None]] = {}  # of caches whose transfer is stalled
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

    @property
    def adapters(self) -> tuple[str, ...] | None:
        """The adapters that it lists; None if no caller asks for one."""
        if not self._adapter:
            return None
        return () if isinstance(self._acting, EngineAdapterLost) else (self._adapter,)

    # -- calls ---------------------------------------------------------------------------------------------

    def call(self, asked: EngineRequest, sink: ResponseSink, *, prefilled: bool = False) -> SimulatedCall | None:
        """Accept a call; None if refused with an answer. Raises CallRefusedError if nothing listens.

        ``prefilled``: another engine computed the prompt, and the call waits for ``receive_kv``.
        """
        if not self.listening:
            raise CallRefusedError
        now_s = self.timeline.now_s
        plan = call_treatment(self._acting, self._rng.random(), asked.max_tokens)
        if asked.request_id and self.adapters == ():
            plan = _NO_ADAPTER
        self._next += 1
        call = SimulatedCall(
            id=self._next,
            asked=asked,
            sink=sink,
            plan=plan if isinstance(plan, ServeCall) else ServeCall(),
            arrived_s=now_s,
            prefilled=prefilled,
        )
        if isinstance(plan, RefuseCall) and not self._frozen:
            # As in the lab, a call for what the engine does not serve is none of its attempts.
            if plan is not _NO_ADAPTER:
                self._book(call, Fate.SHED, plan.message)
            sink.headers(plan.status, plan.retry_after_s)
            sink.ended()
            return None
        job = GpuJob(
            # Without a prompt to compute, the first token costs as much as each later one.
            prefill_s=self._costs.token_s if prefilled else self._costs.prefill_token_s * asked.prompt_tokens,
            token_s=self._costs.token_s,
            tokens=asked.max_tokens
            if call.plan.reset_after is None
            else min(call.plan.reset_after, asked.max_tokens),
            prompt_tokens=1 if prefilled else asked.prompt_tokens,
            report_every=STREAM_INTERVAL if asked.streaming else 0,
            stall_after=call.plan.stall_after,
        )
        self._calls[call.id] = call
        if prefilled:
            self._awaiting[call.id] = job
        else:
            self._begin(call, job)
        return call

    def _begin(self, call: SimulatedCall, job: GpuJob) -> None:
        progress: list[JobProgress] = []
        if self._prefill_cache is self._cache_blocks is None:
            progress = self._gpu.submit(call.id, job, self.timeline.now_s)
        else:
            self._queue.append((call.id, job))
        if call.asked.streaming and not self._gate and not self._frozen:
            call.begun = True
            call.sink.headers(200)
        self._deliver(progress)

    def leave(self, call: SimulatedCall) -> None:
        """The caller left: free its slot."""
        if self._calls.pop(call.id, None) is not None:
            progress = self._drop(call.id)
            self._book(call, Fate.ABORTED, "client left")
            self._deliver(progress)

    def _drop(self, call_id: int) -> list[JobProgress]:
        self._awaiting.pop(call_id, None)
        self._queue = deque(one for one in self._queue if one[0] != call_id)
        return self._gpu.abort(call_id, self.timeline.now_s)

    # -- KV caches -----------------------------------------------------------------------------------------

    def receive_kv(self, call: SimulatedCall, *, arrived: bool) -> None:
        """The KV cache of a prefilled call has come, or is lost: then the call fails."""
        job = self._awaiting.pop(call.id, None)
        if job is None:
            return
        if arrived:
            self._begin(call, job)
            return
        del self._calls[call.id]
        self._book(call, Fate.FAILED, "KV cache lost")
        call.sink.headers(500)
        call.sink.ended()

    def fetch_kv(self, call_id: int, on_end: Callable[[bool], None]) -> None:
        """Send the KV cache of an ended call, and free it; ``on_end`` gets whether it was there."""
        self._fetches[call_id] = on_end
        if self.listening and isinstance(self._acting, EngineKvTransferStall):
            return
        tokens, _ = self._kept.get(call_id, (0, 0.0))
        if tokens and self._transfer_token_s:
            self.timeline.after(tokens * self._transfer_token_s, lambda: self._fetched(call_id))
        else:
            self._fetched(call_id)

    def _fetched(self, call_id: int) -> None:
        on_end = self._fetches.pop(call_id, None)
        if on_end is None:
            return
        self._drop_old_kv()
        on_end(self._kept.pop(call_id, None) is not None)
        self._deliver(self._gpu.advance(self.timeline.now_s))

    def cancel_fetch(self, call_id: int) -> None:
        """The fetching engine gave up; the cache stays."""
        self._fetches.pop(call_id, None)

    def _drop_old_kv(self) -> None:
        for call_id in [one for one, (_, until_s) in self._kept.items() if until_s <= self.timeline.now_s]:
            del self._kept[call_id]

    def _release_kv(self) -> None:
        """Free all caches, as the end of a stall or of the process does; who waits for one gets none."""
        self._kept.clear()
        fetches, self._fetches = list(self._fetches.values()), {}
        for on_end in fetches:
            on_end(False)

    def _feed(self) -> list[JobProgress]:
        """Start prompts in order of arrival, while slots and the KV cache have room."""
        progress: list[JobProgress] = []
        while self._queue and self._gpu.running + self._gpu.waiting < self.slots:
            call_id, job = self._queue[0]
            most = self._prefill_cache
            if most is not None and self._cached_tokens() + job.prompt_tokens > most:
                break
            self._queue.popleft()
            started = self._with_prefix(self._calls[call_id], job)
            progress += self._gpu.submit(call_id, started, self.timeline.now_s)
        return progress

    # -- prefix cache --------------------------------------------------------------------------------------

    def _with_prefix(self, call: SimulatedCall, job: GpuJob) -> GpuJob:
        """The job without the blocks of its prompt that the cache has; the others are there when it has them."""
        asked = call.asked
        if self._cache_blocks is None or call.prefilled or not asked.session:
            return job
        blocks = prompt_blocks(asked.session, asked.prompt_tokens, BLOCK_SIZE)
        found = self._prefixes.cached(blocks, asked.prompt_tokens, BLOCK_SIZE)
        self._prefixes.use(found)
        call.blocks, call.cached_tokens = list(found), len(found) * BLOCK_SIZE
        started = replace(job, prefill_s=job.prefill_s - self._costs.prefill_token_s * call.cached_tokens)

        def computed() -> None:
            if call.id in self._calls:
                call.blocks += [one for one in blocks[len(found) :] if self._prefixes.add(one)]
                in_use = -(-self._gpu.cached_tokens() // BLOCK_SIZE)
                self._prefixes.shrink(max(0, (self._cache_blocks or 0) - in_use))

        self.timeline.after(started.prefill_s, computed)
        return started

    def _cached_tokens(self) -> int:
        return self._gpu.cached_tokens() + sum(tokens for tokens, _ in self._kept.values())

    # -- reports -------------------------------------------------------------------------------------------

    def probe(self) -> MetricsReading:
        """Current counters, as on /metrics and the in-flight page."""
        now_s = self.timeline.now_s
        if not self.listening:
            return MetricsReading(
                at_s=now_s, counters=ProbeFailure(trouble=ProbeFailureReason.REFUSED, detail="connection refused")
            )
        if self._frozen:
            return MetricsReading(
                at_s=now_s, counters=ProbeFailure(trouble=ProbeFailureReason.SILENT, detail="no answer")
            )
        self._drop_old_kv()
        self._deliver(self._gpu.advance(now_s))
        # A stopped GPU does not update its gauges.
        if self._gpu.rate > 0 or self._shown is None:
            self._shown = VllmCounters(
                generation_tokens=float(self._gpu.generated_tokens),
                prompt_tokens=float(self._gpu.prefilled_tokens),
                running=self._gpu.running,
                waiting=self._gpu.waiting + len(self._queue) + len(self._awaiting),
                kv_cache_usage_ratio=self._cache_ratio(),
                started_at_s=self._born_s,
            )
        # Simulated prompts are short, and the gate reports it.
        return MetricsReading(at_s=now_s, counters=self._shown, in_flight=len(self._calls), long_prompts=0)

    def _cache_ratio(self) -> float:
        if isinstance(self._acting, EngineKvCacheFull) and self._calls:
            return 1.0
        return self._cached_tokens() / (self._prefill_cache or self.slots * _CACHE_TOKENS_PER_SLOT)

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
                self._script = self.timeline.after(fault.shutdown_timeout_s + fault.listens_s, self._end)

    def freeze(self, frozen: bool) -> None:
        """SIGSTOP, or SIGCONT."""
        self._frozen = frozen
        self._pace()

    def _flap(self, flap: EngineFlap, *, bad: bool) -> None:
        self._act(flap.fault if bad else None)
        share = flap.bad_share if bad else 1 - flap.bad_share
        self._script = self.timeline.after(flap.period_s * share, lambda: self._flap(flap, bad=not bad))

    def _end(self) -> None:
        """The process has exited after SIGTERM."""
        self._act(EngineCrash())

    def _act(self, fault: SteadyEngineFault | EngineSigterm | None) -> None:
        was_dead = isinstance(self._acting, EngineCrash | EngineSigterm)
        stalled = isinstance(self._acting, EngineKvTransferStall)
        self._acting = fault
        if stalled and not isinstance(fault, EngineKvTransferStall):
            self._release_kv()
        if isinstance(fault, EngineCrash) or (was_dead and not isinstance(fault, EngineSigterm)):
            self._lose("crash" if isinstance(fault, EngineCrash) else "restart")
            for gone in tuple(self.on_gone):
                gone()
        if was_dead and not isinstance(fault, EngineCrash | EngineSigterm):
            self._gpu = SimulatedGpu(slots=self.slots, now=self.timeline.now_s)
            self._prefixes = PrefixCache()
            self._born_s, self._shown = self.timeline.now_s, None
        self._pace()

    def _pace(self) -> None:
        now_s = self.timeline.now_s
        progress = self._gpu.set_rate(0.0 if self._frozen else gpu_rate(self._acting), now_s)
        wanted = token_pace(self._acting)
        progress += self._gpu.set_pace(wanted.factor, wanted.burst, now_s)
        if self._acting is None:
            progress += self._gpu.release_stalls(now_s)
        self._deliver(progress)

    def _lose(self, reason: str) -> None:
        for call in list(self._calls.values()):
            del self._calls[call.id]
            self._drop(call.id)
            self._book(call, Fate.FAILED, reason)
            call.sink.reset()
        self._release_kv()

    # -- work ----------------------------------------------------------------------------------------------

    def _deliver(self, progress: list[JobProgress]) -> None:
        for news in progress:
            call = self._calls.get(news.job_id)
            if call is not None:
                self._tell(call, news)
        started = self._feed()
        if started:
            self._deliver(started)
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
            if call.asked.remote_decode:
                self._kept[call.id] = (call.asked.prompt_tokens, self.timeline.now_s + _KV_KEEP_S)
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
            self._timer = self.timeline.at(due_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._deliver(self._gpu.advance(self.timeline.now_s))

    def _book(self, call: SimulatedCall, fate: Fate, reason: str) -> None:
        use = self._gpu.take_use(call.id)
        self._prefixes.release(call.blocks)
        call.blocks = []
        if not call.asked.request_id:
            return
        self._on_attempt(
            AttemptRecord(
                at_s=call.arrived_s - self.timeline.began_s,
                engine=self.name,
                request_id=call.asked.request_id,
                number=call.asked.number,
                streaming=call.asked.streaming,
                fate=fate,
                reason=reason,
                closed_at_s=self.timeline.now_s - self.timeline.began_s,
                started_at_s=None if use.started_at_s is None else use.started_at_s - self.timeline.began_s,
                slot_s=use.slot_s,
                tokens_generated=use.tokens,
                tokens_sent=call.tokens,
                prefill=self._prefill_cache is not None,
                prompt_tokens=0 if call.prefilled or use.started_at_s is None else call.asked.prompt_tokens,
                cached_tokens=call.cached_tokens,
            )
        )
