"""One fake engine: the simulated GPU, its book, a fault, and the port it all answers on.

This is the shell around :class:`~chaos.fake_engine.gpu.Gpu`: it brings the time and carries out faults (stops the
GPU, closes the port, resets connections). What is said over HTTP is in ``routes``.
"""

import asyncio
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from chaos.fake_engine.answers import Generation
from chaos.fake_engine.book import Book, CallRecord, Outcome
from chaos.fake_engine.config import EngineConfig
from chaos.fake_engine.faults import (
    Crash,
    Fault,
    Flap,
    HealthAnswer,
    KvCacheFull,
    Refuse,
    Serve,
    Sigterm,
    SteadyFault,
    health,
    rate,
    treatment,
)
from chaos.fake_engine.gpu import Gpu, Job, Progress
from chaos.fake_engine.metrics import VllmMetrics
from chaos.fake_engine.routes import application, reset


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call in flight, seen from its HTTP handler."""

    call_id: int
    generation: Generation
    plan: Serve
    request_id: str
    attempt: int
    path: str
    connection: RequestHandler
    arrived_at_s: float
    stopped_before_s: float
    tokens: int = 0
    tokens_sent: int = 0
    finished_at_s: float | None = None
    first_token_at_s: float | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def job_tokens(self) -> int:
        """Tokens the GPU will make: fewer than asked where the connection is to be reset on the way."""
        asked = self.generation.max_tokens
        return asked if self.plan.reset_after is None else min(asked, self.plan.reset_after)

    async def news(self, seen: int) -> None:
        """Wait until there are more than ``seen`` tokens, or the GPU is done with it."""
        while self.tokens <= seen and self.finished_at_s is None:
            self.changed.clear()
            await self.changed.wait()


class FakeEngine:
    """A simulated vLLM engine; it simulates hardware we lack, and every answer's ``x-fake-engine`` says so.

    Use: ``await engine.start()``, then ``engine.port``; ``set_fault`` and ``heal`` at any time; ``await
    engine.stop()``. One event loop, no threads.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.book = Book()
        self.metrics = VllmMetrics(config.model)
        self.terminated = asyncio.Event()  # after Sigterm: port closed and nobody connected
        self._port = config.port
        self._fault: Fault | None = None
        self._acting: SteadyFault | Sigterm | None = None  # what a flap does right now, or the fault itself
        self._rng = random.Random(config.seed)  # noqa: S311 -- picks calls to fail, guards no secret
        self._clock = time.monotonic
        self._gpu = Gpu(slots=config.slots, now=self._clock())
        self._calls: dict[int, Call] = {}
        self._next_call_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._script: asyncio.Task[None] | None = None  # a fault that has a course of its own
        self._changing = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._held: socket.socket | None = None  # keeps the port ours while nothing listens on it

    # -- life -------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port it listens on; kept over crashes."""
        return self._port

    @property
    def url(self) -> str:
        return f"http://{self.config.host}:{self._port}"

    @property
    def fault(self) -> Fault | None:
        return self._fault

    @property
    def listening(self) -> bool:
        return self._listener is not None

    @property
    def calls_in_flight(self) -> int:
        """What the API process counts, hang or not: vLLM's ``server_load``."""
        return len(self._calls)

    @property
    def _cache_is_full(self) -> bool:
        return isinstance(self._acting, KvCacheFull) and bool(self._calls)

    @property
    def calls_before_first_token(self) -> int:
        """Those of them that wait for their first token, as the first-token gate counts."""
        return sum(call.first_token_at_s is None for call in self._calls.values())

    @property
    def health(self) -> HealthAnswer:
        return health(self._acting)

    async def start(self) -> None:
        """Listen; OSError when the port is taken."""
        # vLLM's server notices a client that leaves; aiohttp only with handler_cancellation.
        self._runner = web.AppRunner(
            application(self), handler_cancellation=True, access_log=None, shutdown_timeout=0.0
        )
        await self._runner.setup()
        await self._listen()

    async def stop(self) -> None:
        """Close everything at once; calls in flight are booked as failed."""
        await self._end_script()
        self._close_listener()
        if self._held is not None:
            self._held.close()
            self._held = None
        self._lose_calls("stopped")
        self._reset_connections()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # -- faults -----------------------------------------------------------------------------------------------

    async def set_fault(self, fault: Fault | None) -> None:
        """Replace the fault; None heals. When this returns the fault bites."""
        async with self._changing:
            await self._end_script()
            self._fault = fault
            if isinstance(fault, Flap):
                await self._act(fault.fault)
                self._script = asyncio.create_task(self._flap(fault))
            else:
                await self._act(fault)
                if isinstance(fault, Sigterm):
                    self._script = asyncio.create_task(self._terminate(fault))

    async def heal(self) -> None:
        """Back to health: a crashed or terminated engine starts anew, a hung one goes on."""
        await self.set_fault(None)

    async def _act(self, fault: SteadyFault | Sigterm | None) -> None:
        was_dead = isinstance(self._acting, Sigterm)
        self._acting = fault
        if isinstance(fault, Crash):
            self._close_listener()
            self._lose_calls("crash")
            self._reset_connections()
            return
        if was_dead and not isinstance(fault, Sigterm):
            # The process that got the signal is not coming back; another one takes its place.
            self._close_listener()
            self._lose_calls("restart")
            self._reset_connections()
        if self._listener is None:
            self._be_reborn()
            await self._listen()
        self._deliver(self._gpu.advance(self._clock()))
        self._record_gauges()
        self._deliver(self._gpu.set_rate(rate(fault), self._clock()))
        self._deliver(self._gpu.release_stalls(self._clock()))
        self._arm()

    async def _flap(self, flap: Flap) -> None:
        while True:
            await asyncio.sleep(flap.period_s * flap.bad_share)
            await self._act(None)
            await asyncio.sleep(flap.period_s * (1 - flap.bad_share))
            await self._act(flap.fault)

    async def _terminate(self, fault: Sigterm) -> None:
        if fault.shutdown_timeout_s:
            await self._until(lambda: not self._calls, limit_s=fault.shutdown_timeout_s)
            self._deliver(self._gpu.set_rate(0.0, self._clock()))
        await asyncio.sleep(fault.listens_s)
        self._close_listener()
        busy = {call.connection for call in self._calls.values()}
        for connection in self._connections():
            if connection in busy:
                connection.close()  # after its answer
            else:
                connection.force_close()  # close() alone would leave an idle one open, and deaf
        await self._until(lambda: not self._connections(), limit_s=None)
        self.terminated.set()

    async def _until(self, condition: Callable[[], bool], *, limit_s: float | None) -> None:
        deadline_s = None if limit_s is None else self._clock() + limit_s
        # aiohttp announces no end of a connection, so there is no event to wait for.
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
    ) -> Call | Refuse:
        """Open a call: it is in the GPU's queue when this returns, or refused and booked as shed."""
        now = self._clock()
        self.book.open()
        plan = treatment(self._acting, self._rng.random())
        limit = self.config.max_unfinished
        if isinstance(plan, Serve) and limit is not None and len(self._calls) >= limit:
            self.metrics.rejected()
            plan = Refuse(
                status=503,
                message="The engine is currently busy and cannot accept new requests. "
                "Please try again later or on a different instance.",
                error_type="Service Unavailable",
            )
        self._next_call_id += 1
        call = Call(
            call_id=self._next_call_id,
            generation=generation,
            plan=plan if isinstance(plan, Serve) else Serve(),
            request_id=request_id,
            attempt=attempt,
            path=path,
            connection=connection,
            arrived_at_s=now,
            stopped_before_s=self._gpu.stopped_s,
        )
        if isinstance(plan, Refuse):
            self._enter(call, Outcome.SHED, plan.message)
            return plan
        job = Job(
            prefill_s=self.config.prefill_s + self.config.prefill_token_s * generation.prompt_tokens,
            token_s=self.config.token_s,
            tokens=call.job_tokens,
            prompt_tokens=generation.prompt_tokens,
            report_every=self.config.stream_interval if generation.streaming else 0,
            stall_after=call.plan.stall_after,
        )
        self._calls[call.call_id] = call
        self._deliver(self._gpu.submit(call.call_id, job, now))
        call.stopped_before_s = self._gpu.stopped_s
        self._arm()
        return call

    def close(self, call: Call, outcome: Outcome, reason: str) -> None:
        """The handler is done with the call, one way or the other; its slot is free. Twice does no harm."""
        if self._calls.pop(call.call_id, None) is None:
            return
        self._deliver(self._gpu.abort(call.call_id, self._clock()))
        self._enter(call, outcome, reason)
        self._arm()

    def metrics_text(self) -> bytes:
        """/metrics now; a GPU that stands still has nothing new to say."""
        self._deliver(self._gpu.advance(self._clock()))
        if self._gpu.rate > 0:
            self._record_gauges()
        if self._cache_is_full:
            self.metrics.preempted()
        self._arm()
        return self.metrics.text()

    def _enter(self, call: Call, outcome: Outcome, reason: str) -> None:
        use = self._gpu.take_use(call.call_id)
        self.book.close(
            CallRecord(
                request_id=call.request_id,
                attempt=call.attempt,
                path=call.path,
                streaming=call.generation.streaming,
                outcome=outcome,
                reason=reason,
                arrived_at_s=call.arrived_at_s,
                closed_at_s=self._clock(),
                started_at_s=use.started_at_s,
                slot_s=use.slot_s,
                stuck_s=max(0.0, self._gpu.stopped_s - call.stopped_before_s),
                tokens_asked=call.generation.max_tokens,
                tokens_generated=use.tokens,
                tokens_sent=call.tokens_sent,
            )
        )

    def _lose_calls(self, reason: str) -> None:
        for call in list(self._calls.values()):
            self.close(call, Outcome.FAILED, reason)

    # -- time -------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Look again when the GPU has something; the timer that is due first wins."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_at_s = self._gpu.due_at()
        if due_at_s is not None:
            wait_s = max(due_at_s - self._clock(), self.config.wake_s)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._deliver(self._gpu.advance(self._clock()))
        self._arm()

    def _deliver(self, progress: list[Progress]) -> None:
        for news in progress:
            call = self._calls.get(news.job_id)
            if call is None:
                continue
            if call.first_token_at_s is None:
                call.first_token_at_s = news.at_s
                self.metrics.first_token(news.at_s - call.arrived_at_s)
            later_tokens = news.tokens - max(call.tokens, 1)
            pace_s = self.config.token_s / (self._gpu.rate or 1.0)
            self.metrics.inter_token(later_tokens, seconds_each=pace_s)
            call.tokens = news.tokens
            if news.finished:
                call.finished_at_s = news.at_s
                self.metrics.finished(
                    latency_s=news.at_s - call.arrived_at_s,
                    queued_s=news.started_at_s - call.arrived_at_s,
                    decode_s=news.at_s - call.first_token_at_s,
                    tokens=news.tokens,
                )
            if news.finished or call.generation.streaming:
                call.changed.set()

    def _record_gauges(self) -> None:
        capacity = self.config.slots * self.config.max_model_len
        self.metrics.gauges(
            running=self._gpu.running,
            waiting=self._gpu.waiting,
            kv_cache_ratio=1.0 if self._cache_is_full else self._gpu.cached_tokens() / capacity,
        )
        self.metrics.totals(prompt_tokens=self._gpu.prefilled_tokens, generation_tokens=self._gpu.generated_tokens)

    # -- sockets ----------------------------------------------------------------------------------------------

    def _be_reborn(self) -> None:
        self._gpu = Gpu(slots=self.config.slots, now=self._clock())
        self.metrics = VllmMetrics(self.config.model)
        self.terminated.clear()

    async def _listen(self) -> None:
        assert self._runner is not None  # noqa: S101 -- start() came first
        assert self._runner.server is not None  # noqa: S101
        held, self._held = self._held or self._bound(), None
        self._listener = await asyncio.get_running_loop().create_server(self._runner.server, sock=held)

    def _bound(self) -> socket.socket:
        """A socket on our port that refuses connections until it listens; OSError when the port is taken."""
        family = socket.AF_INET6 if ":" in self.config.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.config.host, self._port))
        except OSError:
            bound.close()
            raise
        self._port = bound.getsockname()[1]
        return bound

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            # Else the kernel lends the port of a crashed engine to any connection that leaves this machine.
            self._held = self._bound()

    def _connections(self) -> list[RequestHandler]:
        if self._runner is None or self._runner.server is None:
            return []
        return self._runner.server.connections

    def _reset_connections(self) -> None:
        for connection in self._connections():
            if isinstance(connection.transport, asyncio.Transport):
                reset(connection.transport)
