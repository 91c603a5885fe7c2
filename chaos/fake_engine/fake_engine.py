"""One fake engine: its scheduler, call log, fault and port.

This wraps :class:`~chaos.fake_engine.data_parallel.DataParallelRanks`: it supplies the time and carries out faults
(stops the GPU, closes the port, resets connections). HTTP answers are in ``vllm_routes``.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from aiohttp.web_protocol import RequestHandler

from chaos.fake_engine.active_call import ActiveCall
from chaos.fake_engine.call_journal import KILLED, CallJournal
from chaos.fake_engine.call_log import CallLog, CallOutcome
from chaos.fake_engine.data_parallel import DataParallelRanks
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
from chaos.fake_engine.engine_port import EnginePort
from chaos.fake_engine.metrics_page import FakeVllmMetrics
from chaos.fake_engine.openai_api import Generation
from chaos.fake_engine.prefix_cache import block_hashes
from chaos.fake_engine.simulated_gpu import JobProgress
from chaos.fake_engine.step_scheduler import StepCosts, StepRequest, StepScheduler
from chaos.fake_engine.vllm_routes import application
from engine.first_token_gate import LONG_BODY_BYTES

# Interval at which an engine with a journal checks itself, and the delay that means the process was stopped. A
# busy event loop is late by tens of milliseconds only.
_PULSE_S = 0.05
_STOPPED_AFTER_S = 0.5
_NOTES_EVERY_PULSES = 5


class FakeEngine:
    """A simulated vLLM engine; every answer has an ``x-fake-engine`` header.

    Use: ``await engine.start()``, then ``engine.port``; ``set_fault`` and ``heal`` at any time; ``await
    engine.stop()``. One event loop, no threads.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.book = CallLog()
        self.metrics = FakeVllmMetrics(config.model, config.data_parallel_size)
        self.adapters = config.adapters
        self.adapter_requests = 0  # requests to load one, over all processes
        self.terminated = asyncio.Event()  # after SIGTERM: port closed, no connections
        self._port = EnginePort(config.host, config.port, config.tls)
        self._fault: EngineFault | None = None
        self._acting: SteadyEngineFault | EngineSigterm | None = (
            None  # the current phase of a flap, or the fault itself
        )
        self._rng = random.Random(config.seed)  # noqa: S311 -- picks calls to fail, guards no secret
        self._clock = time.monotonic
        self._gpu = self._fresh_gpu()
        self._calls: dict[int, ActiveCall] = {}
        self._next_call_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._script: asyncio.Task[None] | None = None  # task of a fault with several phases
        self._journal: CallJournal | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._awake_at_s = self._clock()
        self._changing = asyncio.Lock()
        self._transfers = asyncio.Event()  # set while KV caches reach other engines
        self._transfers.set()
        self._kept_kv: deque[tuple[float, int]] = deque()  # until when, and the call

    # -- life -------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port; kept over crashes."""
        return self._port.number

    @property
    def url(self) -> str:
        return self._port.url

    @property
    def fault(self) -> EngineFault | None:
        return self._fault

    @property
    def listening(self) -> bool:
        return self._port.listening

    @property
    def calls_in_flight(self) -> int:
        """Calls open in the API process, also during a hang: vLLM's ``server_load``."""
        return len(self._calls)

    @property
    def _cache_is_full(self) -> bool:
        return isinstance(self._acting, EngineKvCacheFull) and bool(self._calls)

    @property
    def calls_before_first_token(self) -> int:
        """Calls waiting for their first token, as the first-token gate counts them."""
        return sum(call.first_token_at_s is None for call in self._calls.values())

    @property
    def long_calls_before_first_token(self) -> int:
        """Those of them with a long body, at four bytes a token."""
        waiting = (call for call in self._calls.values() if call.first_token_at_s is None)
        return sum(4 * call.generation.prompt_tokens >= LONG_BODY_BYTES for call in waiting)

    @property
    def health(self) -> HealthAnswer:
        return health_answer(self._acting)

    async def start(self) -> None:
        """Listen; raises OSError if the port is in use. A journal restores the log of previous runs."""
        await self._port.open(application(self))
        await self._port.listen()
        if self.config.journal:
            self._journal = CallJournal.open(Path(self.config.journal))
            for call_id, record in self._journal.earlier.items():
                self.book.open()
                self.book.close(record)
                self._next_call_id = max(self._next_call_id, call_id)
            self._awake_at_s = self._clock()
            self._pulse = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        """Close everything at once; running calls are logged as failed."""
        await self._end_script()
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.wait([self._pulse])
        self._port.refuse()
        self._lose_calls("stopped")
        self._port.reset_connections()
        await self._port.close()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    # -- faults -----------------------------------------------------------------------------------------------

    async def set_fault(self, fault: EngineFault | None) -> None:
        """Set the fault; None heals. The fault is active on return."""
        async with self._changing:
            await self._end_script()
            self._fault = fault
            if isinstance(fault, EngineFlap):
                await self._act(fault.fault)
                self._script = asyncio.create_task(self._flap(fault))
            else:
                await self._act(fault)
                if isinstance(fault, EngineSigterm):
                    self._script = asyncio.create_task(self._terminate(fault))

    async def heal(self) -> None:
        """Clear the fault: a crashed or terminated engine restarts, a hung one resumes."""
        await self.set_fault(None)

    async def _act(self, fault: SteadyEngineFault | EngineSigterm | None) -> None:
        self._notice_stop()
        was_dead, had_lost = isinstance(self._acting, EngineSigterm), isinstance(self._acting, EngineAdapterLost)
        self._acting = fault
        if isinstance(fault, EngineAdapterLost):
            self.adapters = ()
        elif had_lost:
            self.adapters = tuple(dict.fromkeys((*self.config.adapters, *self.adapters)))
        if isinstance(fault, EngineCrash):
            self._port.refuse()
            self._lose_calls("crash")
            self._port.reset_connections()
            return
        if was_dead and not isinstance(fault, EngineSigterm):
            # The signalled process does not come back; a new one replaces it.
            self._port.refuse()
            self._lose_calls("restart")
            self._port.reset_connections()
        if not self._port.listening:
            self._be_reborn()
            await self._port.listen()
        self._deliver(self._gpu.advance(self._clock()))
        self._record_step()
        for number, rank in enumerate(self._gpu.ranks):
            self._deliver(rank.set_rate(gpu_rate(fault, number), self._clock()))
        if not isinstance(fault, EngineKvTransferStall):
            if not self._transfers.is_set():
                self._deliver(self._gpu.release_all_kv(self._clock()))
            self._transfers.set()
        else:
            self._transfers.clear()
        wanted = token_pace(fault)
        self._deliver(self._gpu.set_pace(wanted.factor, wanted.burst, self._clock()))
        self._deliver(self._gpu.release_stalls(self._clock()))
        self._arm()

    async def _flap(self, flap: EngineFlap) -> None:
        while True:
            await asyncio.sleep(flap.period_s * flap.bad_share)
            await self._act(None)
            await asyncio.sleep(flap.period_s * (1 - flap.bad_share))
            await self._act(flap.fault)

    async def _terminate(self, fault: EngineSigterm) -> None:
        if fault.shutdown_timeout_s:
            await self._until(lambda: not self._calls, limit_s=fault.shutdown_timeout_s)
            for rank in self._gpu.ranks:
                self._deliver(rank.set_rate(0.0, self._clock()))
        await asyncio.sleep(fault.listens_s)
        self._port.refuse()
        busy = {call.connection for call in self._calls.values()}
        for connection in self._port.connections:
            if connection in busy:
                connection.close()  # after its answer
            else:
                connection.force_close()  # close() alone would leave an idle connection open but unserved
        await self._until(lambda: not self._port.connections, limit_s=None)
        self.terminated.set()

    async def _until(self, condition: Callable[[], bool], *, limit_s: float | None) -> None:
        deadline_s = None if limit_s is None else self._clock() + limit_s
        # aiohttp has no event for the end of a connection.
        while not condition() and (deadline_s is None or self._clock() < deadline_s):
            await asyncio.sleep(0.01)

    async def _end_script(self) -> None:
        script, self._script = self._script, None
        if script is not None:
            script.cancel()
            await asyncio.wait([script])

    # -- calls ------------------------------------------------------------------------------------------------

    def accept(
        self,
        generation: Generation,
        *,
        request_id: str,
        attempt: int,
        path: str,
        connection: RequestHandler,
        rank: int | None = None,
        prefilled: bool = False,
    ) -> ActiveCall | RefuseCall:
        """Open a call: it is then in the GPU's queue, that of ``rank`` if given, or refused and logged as shed.

        ``prefilled``: another engine computed the prompt, so it costs nothing here, and the call waits for
        ``receive_kv``.
        """
        self._notice_stop()
        self._drop_old_kv()
        now = self._clock()
        self.book.open()
        plan = call_treatment(self._acting, self._rng.random(), generation.max_tokens)
        limit = self.config.max_unfinished
        if isinstance(plan, ServeCall) and limit is not None and len(self._calls) >= limit:
            self.metrics.rejected()
            plan = RefuseCall(
                status=503,
                message="The engine is currently busy and cannot accept new requests. "
                "Please try again later or on a different instance.",
                error_type="Service Unavailable",
            )
        self._next_call_id += 1
        rank = self._gpu.choose() if rank is None else rank
        call = ActiveCall(
            call_id=self._next_call_id,
            generation=generation,
            plan=plan if isinstance(plan, ServeCall) else ServeCall(),
            request_id=request_id,
            attempt=attempt,
            path=path,
            connection=connection,
            arrived_at_s=now,
            stopped_before_s=self._gpu.ranks[rank].stopped_s,
            rank=rank,
        )
        if isinstance(plan, RefuseCall):
            self._enter(call, CallOutcome.SHED, plan.message)
            return plan
        job = StepRequest(
            latency_s=0.0 if prefilled else self.config.prefill_s,
            latency_token_s=0.0 if prefilled else self.config.prefill_token_s,
            blocks=block_hashes(generation.prompt, self.config.block_size)
            if self.config.enable_prefix_caching
            else (),
            prompt_tokens=1 if prefilled else generation.prompt_tokens,
            tokens=call.job_tokens,
            report_every=self.config.stream_interval if generation.streaming else 0,
            stall_after=call.plan.stall_after,
            awaits_kv=prefilled,
            keeps_kv=generation.remote_decode,
        )
        self._calls[call.call_id] = call
        self._deliver(self._gpu.submit(call.call_id, job, now, rank=rank))
        call.stopped_before_s = self._gpu.ranks[rank].stopped_s
        self._note(call)
        self._arm()
        return call

    def receive_kv(self, call: ActiveCall) -> None:
        """Let a prefilled call begin: its KV cache has come."""
        self._notice_stop()
        self._deliver(self._gpu.receive_kv(call.call_id, self._clock(), rank=call.rank))
        self._arm()

    async def send_kv(self, call_id: int) -> bool:
        """Send the KV cache of an ended call to another engine, and free it; False if it is not there."""
        await self._transfers.wait()
        if self.config.kv_transfer_token_s:
            await asyncio.sleep(self._gpu.kept_tokens(call_id) * self.config.kv_transfer_token_s)
        if not self._gpu.kept_tokens(call_id):
            return False
        self._deliver(self._gpu.release_kv(call_id, self._clock()))
        self._arm()
        return True

    def _drop_old_kv(self) -> None:
        """Free the KV caches that no engine fetched in time."""
        while self._kept_kv and self._kept_kv[0][0] <= self._clock():
            self._deliver(self._gpu.release_kv(self._kept_kv.popleft()[1], self._clock()))

    def close(self, call: ActiveCall, outcome: CallOutcome, reason: str) -> None:
        """End a call and free its slot. Idempotent."""
        if self._calls.pop(call.call_id, None) is None:
            return
        self._notice_stop()
        self._deliver(self._gpu.abort(call.call_id, self._clock(), rank=call.rank))
        self._enter(call, outcome, reason)
        self._arm()

    def metrics_text(self) -> bytes:
        """The /metrics page; a stopped GPU does not update it."""
        self._notice_stop()
        self._drop_old_kv()
        self._deliver(self._gpu.advance(self._clock()))
        self._record_step()
        if self._cache_is_full:
            self.metrics.preempted()
        self._arm()
        return self.metrics.text()

    def _enter(self, call: ActiveCall, outcome: CallOutcome, reason: str) -> None:
        gpu = self._gpu.ranks[call.rank]
        use = gpu.take_use(call.call_id)
        record = call.record(use, outcome, reason, at_s=self._clock(), stopped_s=gpu.stopped_s)
        self.book.close(record)
        if self._journal is not None:
            self._journal.note(call.call_id, record)

    def _note(self, call: ActiveCall) -> None:
        """Journal the record that counts if the process is killed now."""
        if self._journal is not None:
            gpu = self._gpu.ranks[call.rank]
            use, now = gpu.use_so_far(call.call_id), self._clock()
            record = call.record(use, CallOutcome.FAILED, KILLED, at_s=now, stopped_s=gpu.stopped_s)
            self._journal.note(call.call_id, record)

    def _lose_calls(self, reason: str) -> None:
        for call in list(self._calls.values()):
            self.close(call, CallOutcome.FAILED, reason)

    def _arm(self) -> None:
        """Set the timer for the GPU's next event."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_at_s = self._gpu.due_at()
        if due_at_s is not None:
            wait_s = max(due_at_s - self._clock(), self.config.wake_s)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)

    async def _beat(self) -> None:
        """Check periodically whether the process was stopped, and journal the cost of running calls."""
        pulses = 0
        while True:
            await asyncio.sleep(_PULSE_S)
            self._notice_stop()
            self._awake_at_s = self._clock()
            pulses += 1
            if pulses % _NOTES_EVERY_PULSES == 0 and self._calls:
                self._deliver(self._gpu.advance(self._clock()))
                for call in tuple(self._calls.values()):
                    self._note(call)
                self._arm()

    def _notice_stop(self) -> None:
        """Subtract the time in which the process was stopped; the clock kept running."""
        now = self._clock()
        if self._pulse is None or now - self._awake_at_s < _STOPPED_AFTER_S:
            return
        self._deliver(self._gpu.skip(self._awake_at_s, now))
        self._awake_at_s = now

    def _wake(self) -> None:
        self._notice_stop()
        self._timer = None
        self._deliver(self._gpu.advance(self._clock()))
        self._arm()

    def _deliver(self, progress: list[JobProgress]) -> None:
        for news in progress:
            call = self._calls.get(news.job_id)
            if call is None:
                continue
            if call.first_token_at_s is None:
                call.first_token_at_s = news.at_s
                self.metrics.first_token(news.at_s - call.arrived_at_s, rank=call.rank)
            later_tokens = news.tokens - max(call.tokens, 1)
            if later_tokens > 0:
                gap_s = (news.at_s - call.newest_token_at_s) / later_tokens
                self.metrics.inter_token(later_tokens, seconds_each=gap_s, rank=call.rank)
            call.tokens, call.newest_token_at_s = news.tokens, news.at_s
            if news.finished:
                call.finished_at_s = news.at_s
                if call.generation.remote_decode:
                    self._kept_kv.append((news.at_s + self.config.kv_keep_s, news.job_id))
                self.metrics.finished(
                    latency_s=news.at_s - call.arrived_at_s,
                    queued_s=news.started_at_s - call.arrived_at_s,
                    decode_s=news.at_s - call.first_token_at_s,
                    tokens=news.tokens,
                    rank=call.rank,
                )
            if news.finished or call.generation.streaming:
                call.changed.set()

    def _record_step(self) -> None:
        full = self._cache_is_full
        for number, gpu in enumerate(self._gpu.ranks):
            if gpu.rate > 0:
                self.metrics.step(gpu.published, gpu.take_iterations(), kv_cache_full=full, rank=number)

    def _fresh_gpu(self) -> DataParallelRanks:
        return DataParallelRanks([self._fresh_rank() for _ in range(self.config.data_parallel_size)])

    def _fresh_rank(self) -> StepScheduler:
        config = self.config
        return StepScheduler(
            costs=StepCosts(
                base_s=config.token_s,
                prefill_token_s=config.step_prefill_token_s,
                context_token_s=config.step_context_token_s,
                decode_s=config.step_decode_s,
            ),
            slots=config.slots,
            budget=config.max_num_batched_tokens,
            kv_blocks=config.kv_blocks,
            block_size=config.block_size,
            now=self._clock(),
        )

    def _be_reborn(self) -> None:
        self._kept_kv.clear()
        self._gpu = self._fresh_gpu()
        self.metrics = FakeVllmMetrics(self.config.model, self.config.data_parallel_size)
        self.adapters = self.config.adapters
        self.terminated.clear()
