"""One engine in simulated time: the lab's simulated GPU and its faults, without sockets.

What an engine does to a call under a fault is said once, in ``chaos.fake_engine``; this only carries it out.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from chaos.fake_engine.book import Outcome as Fate
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
    pace,
    rate,
    treatment,
)
from chaos.fake_engine.gpu import Gpu, Job, Progress
from chaos.history.events import Attempt
from chaos.simulator.timeline import Appointment, Timeline
from engine.reading import Failure, Look, Trouble
from engine.vllm_metrics import Counters

STREAM_INTERVAL: Final = 8
"""Tokens per event of a stream, as the lab's engines send them."""

_CACHE_TOKENS_PER_SLOT: Final = 4096


class Sink(Protocol):
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
class Asked:
    """What a call asks for, and of whom it is."""

    request_id: str
    number: int
    streaming: bool
    prompt_tokens: int
    max_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One call that the engine holds. ``told`` tokens have been sent; ``begun``: its headers have."""

    id: int
    asked: Asked
    sink: Sink
    plan: Serve
    arrived_s: float
    told: int = 0
    begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What work costs this engine, slowness included."""

    prefill_token_s: float
    token_s: float


class RefusedError(Exception):
    """Nobody listens there."""


class SimulatedEngine:
    """``call`` and ``leave`` are of proxies, ``look`` is of agents, ``break_`` and ``freeze`` are of faults.

    ``on_attempt`` is told of each call of a caller when it is closed; calls without a request id are probes.
    """

    def __init__(
        self,
        timeline: Timeline,
        name: str,
        slots: int,
        costs: Costs,
        *,
        gate: bool,
        rng: random.Random,
        on_attempt: Callable[[Attempt], None],
    ) -> None:
        self.name = name
        self.slots = slots
        self._timeline = timeline
        self._costs = costs
        self._gate = gate
        self._rng = rng
        self._on_attempt = on_attempt
        self._gpu = Gpu(slots=slots, now=timeline.now_s)
        self._born_s = timeline.now_s
        self._acting: SteadyFault | Sigterm | None = None
        self._frozen = False
        self._calls: dict[int, Call] = {}
        self._next = 0
        self._timer: Appointment | None = None
        self._script: Appointment | None = None
        self._shown: Counters | None = None
        self.on_gone: list[Callable[[], None]] = []
        """Called when its process ends: who holds a connection to it sees that at once."""

    @property
    def listening(self) -> bool:
        """Whether connections are taken."""
        return not isinstance(self._acting, Crash)

    @property
    def answers(self) -> bool:
        """Whether its process runs."""
        return self.listening and not self._frozen

    @property
    def health(self) -> HealthAnswer:
        """What /health says, where anybody answers."""
        return health(self._acting)

    @property
    def boot(self) -> float:
        """When this life of it began."""
        return self._born_s

    # -- calls ---------------------------------------------------------------------------------------------

    def call(self, asked: Asked, sink: Sink) -> Call | None:
        """Take a call; None where it was refused with an answer. RefusedError where nobody listens."""
        if not self.listening:
            raise RefusedError
        now_s = self._timeline.now_s
        plan = treatment(self._acting, self._rng.random(), asked.max_tokens)
        self._next += 1
        call = Call(
            id=self._next,
            asked=asked,
            sink=sink,
            plan=plan if isinstance(plan, Serve) else Serve(),
            arrived_s=now_s,
        )
        if isinstance(plan, Refuse) and not self._frozen:
            self._book(call, Fate.SHED, plan.message)
            sink.headers(plan.status, plan.retry_after_s)
            sink.ended()
            return None
        job = Job(
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

    def leave(self, call: Call) -> None:
        """The caller is gone; its slot is free."""
        if self._calls.pop(call.id, None) is not None:
            progress = self._gpu.abort(call.id, self._timeline.now_s)
            self._book(call, Fate.ABORTED, "client left")
            self._deliver(progress)

    def look(self) -> Look:
        """The counters, as whoever reads /metrics and the count of requests sees them now."""
        now_s = self._timeline.now_s
        if not self.listening:
            return Look(at_s=now_s, counters=Failure(trouble=Trouble.REFUSED, detail="connection refused"))
        if self._frozen:
            return Look(at_s=now_s, counters=Failure(trouble=Trouble.SILENT, detail="no answer"))
        self._deliver(self._gpu.advance(now_s))
        # A GPU that stands still has nothing new to say: the gauges stay as they were.
        if self._gpu.rate > 0 or self._shown is None:
            self._shown = Counters(
                generation_tokens=float(self._gpu.generated_tokens),
                prompt_tokens=float(self._gpu.prefilled_tokens),
                running=self._gpu.running,
                waiting=self._gpu.waiting,
                kv_cache_usage_ratio=self._cache_ratio(),
                started_at_s=self._born_s,
            )
        return Look(at_s=now_s, counters=self._shown, in_flight=len(self._calls))

    def _cache_ratio(self) -> float:
        if isinstance(self._acting, KvCacheFull) and self._calls:
            return 1.0
        return self._gpu.cached_tokens() / (self.slots * _CACHE_TOKENS_PER_SLOT)

    # -- faults --------------------------------------------------------------------------------------------

    def break_(self, fault: Fault | None) -> None:
        """From now on it misbehaves so; None heals it."""
        if self._script is not None:
            self._script.cancel()
            self._script = None
        if isinstance(fault, Flap):
            self._flap(fault, bad=True)
        else:
            self._act(fault)
            if isinstance(fault, Sigterm):
                self._script = self._timeline.after(fault.shutdown_timeout_s + fault.listens_s, self._end)

    def freeze(self, frozen: bool) -> None:
        """SIGSTOP, or SIGCONT."""
        self._frozen = frozen
        self._pace()

    def _flap(self, flap: Flap, *, bad: bool) -> None:
        self._act(flap.fault if bad else None)
        share = flap.bad_share if bad else 1 - flap.bad_share
        self._script = self._timeline.after(flap.period_s * share, lambda: self._flap(flap, bad=not bad))

    def _end(self) -> None:
        """The process that got a SIGTERM is gone."""
        self._act(Crash())

    def _act(self, fault: SteadyFault | Sigterm | None) -> None:
        was_dead = isinstance(self._acting, Crash | Sigterm)
        self._acting = fault
        if isinstance(fault, Crash) or (was_dead and not isinstance(fault, Sigterm)):
            self._lose("crash" if isinstance(fault, Crash) else "restart")
            for gone in tuple(self.on_gone):
                gone()
        if was_dead and not isinstance(fault, Crash | Sigterm):
            self._gpu = Gpu(slots=self.slots, now=self._timeline.now_s)
            self._born_s, self._shown = self._timeline.now_s, None
        self._pace()

    def _pace(self) -> None:
        now_s = self._timeline.now_s
        progress = self._gpu.set_rate(0.0 if self._frozen else rate(self._acting), now_s)
        wanted = pace(self._acting)
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

    def _deliver(self, progress: list[Progress]) -> None:
        for news in progress:
            call = self._calls.get(news.job_id)
            if call is not None:
                self._tell(call, news)
        self._arm()

    def _tell(self, call: Call, news: Progress) -> None:
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

    def _book(self, call: Call, fate: Fate, reason: str) -> None:
        use = self._gpu.take_use(call.id)
        if not call.asked.request_id:
            return
        self._on_attempt(
            Attempt(
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
