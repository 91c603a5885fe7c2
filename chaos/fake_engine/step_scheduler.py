"""The scheduler of a fake engine: vLLM's steps, with chunked prefill and a paged KV cache.

Each step has a budget of tokens. Running requests come first, in order of admission: one token for a decode, a
chunk for an unfinished prefill. The rest goes to waiting requests in order of arrival. All requests of a step get
their tokens when it ends, so one long prefill holds up every other request. Arrivals, aborts and all counters wait
for the end of the step, and nothing moves within one.

It has no HTTP, clock or event loop: the caller passes the time and gets back what has happened since. As in
:class:`~chaos.fake_engine.simulated_gpu.SimulatedGpu`, *work* grows by ``rate`` per second.

Source: ``vllm/v1/core/sched/scheduler.py``, first come first served, without speculative decoding.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from chaos.fake_engine.prefix_cache import PrefixCache
from chaos.fake_engine.simulated_gpu import JobProgress, SlotUse

# 0.5 µs: a timer that fires at the computed time must find its step ended despite rounding.
_ROUNDING = 5e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Duration of a step: ``base_s``, and the costs of its tokens.

    A prompt token costs ``prefill_token_s`` plus ``context_token_s`` per token before it; a decode ``decode_s``.
    """

    base_s: float
    prefill_token_s: float = 0.0
    context_token_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """GPU work of one call.

    ``latency_s`` is the shortest time to the first token, with ``latency_token_s`` more per prompt token to
    compute; it overlaps with other calls and takes no step. ``blocks`` are hashes of the prompt's blocks for the
    prefix cache; empty without it. ``tokens`` is at least 1. After ``stall_after`` tokens the request holds its
    slot without progress until released. It reports its first token, then every ``report_every`` tokens; 0 reports
    only the end. ``awaits_kv``: it waits for the KV cache of its prompt until ``receive_kv``. ``keeps_kv``: its
    own outlives it until ``release_kv``, for another engine.
    """

    prompt_tokens: int
    tokens: int
    latency_s: float = 0.0
    latency_token_s: float = 0.0
    blocks: tuple[int, ...] = ()
    report_every: int = 1
    stall_after: int | None = None
    awaits_kv: bool = False
    keeps_kv: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounters:
    """What the engine core publishes at the end of a step."""

    running: int = 0
    waiting: int = 0
    kv_cache_ratio: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens_cached: int = 0
    preemptions: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    id: int
    job: StepRequest
    stall_after: int | None
    started_at_s: float | None = None
    ready: float = 0.0  # on the axis of work
    tokens: int = 0
    reported: int = 0
    computed: int = 0  # tokens in the KV cache
    blocks: int = 0  # its own and those it uses in the prefix cache
    cached: list[int] = field(default_factory=list)  # the latter
    looked_up: int = 0  # blocks of its prompt that are in the cache, or were when it computed them
    hit_tokens: int = 0  # prompt tokens that it found
    queried: bool = False
    preempted: int = 0  # preemptions since its newest token
    gone: bool = False

    @property
    def missing(self) -> int:
        """Tokens to compute until its next token exists: 1 for a decode."""
        return self.job.prompt_tokens + self.tokens - self.computed

    @property
    def latency_s(self) -> float:
        """Shortest time to its first token."""
        return self.job.latency_s + self.job.latency_token_s * (self.job.prompt_tokens - self.hit_tokens)

    @property
    def limit(self) -> int:
        """Tokens it generates before a stall or its end."""
        return self.job.tokens if self.stall_after is None else min(self.stall_after, self.job.tokens)

    @property
    def decodes(self) -> bool:
        return self.tokens > 0 and self.missing == 1

    @property
    def can_run(self) -> bool:
        return not self.gone and self.tokens < self.limit


@dataclass(slots=True, kw_only=True)
class _Run:
    """``count`` equal steps, ``done`` of them ended; more than one only if all requests decode."""

    chosen: list[tuple[_Request, int]]
    start: float  # on the axis of work
    step: float
    count: int = 1
    done: int = 0

    @property
    def end(self) -> float:
        return self.start + self.count * self.step

    def ended(self, work: float) -> int:
        """Steps that have ended by ``work``."""
        if self.step <= _ROUNDING:
            return self.count
        return min(self.count, int((work - self.start + _ROUNDING) / self.step))


@dataclass(slots=True, kw_only=True)
class StepScheduler:
    """Slots, a token budget and a KV cache; the caller advances the time."""

    costs: StepCosts
    slots: int
    budget: int
    kv_blocks: int
    block_size: int
    now: float
    rate: float = field(default=1.0, init=False)
    pace: float = field(default=1.0, init=False)
    """Factor on the base time of steps with decodes."""
    stopped_s: float = field(default=0.0, init=False)
    """Seconds at rate 0 until the last update."""
    published: StepCounters = field(default_factory=StepCounters, init=False)
    _work: float = field(default=0.0, init=False)
    _burst: int = field(default=1, init=False)
    _run: _Run | None = field(default=None, init=False)
    _requests: dict[int, _Request] = field(default_factory=dict, init=False)
    _arrived: list[_Request] = field(default_factory=list, init=False)
    _deferred: dict[int, _Request] = field(default_factory=dict, init=False)  # their KV caches are on the way
    _kept: dict[int, _Request] = field(default_factory=dict, init=False)  # ended, with KV caches not yet fetched
    _waiting: deque[_Request] = field(default_factory=deque, init=False)
    _running: list[_Request] = field(default_factory=list, init=False)
    _gone: dict[int, SlotUse] = field(default_factory=dict, init=False)
    _free: int = field(default=0, init=False)
    _prompt_tokens: int = field(default=0, init=False)
    _generation_tokens: int = field(default=0, init=False)
    _prefix_queries: int = field(default=0, init=False)
    _prefix_hits: int = field(default=0, init=False)
    _prompt_tokens_cached: int = field(default=0, init=False)
    _cache: PrefixCache = field(default_factory=PrefixCache, init=False)
    _preemptions: int = field(default=0, init=False)
    _iterations: Counter[int] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self._free = self.kv_blocks

    def take_iterations(self) -> Mapping[int, int]:
        """Take the steps with output since the last call: their number by their prompt and generated tokens."""
        taken, self._iterations = self._iterations, Counter()
        return taken

    def submit(self, request_id: int, job: StepRequest, now: float) -> list[JobProgress]:
        progress = self.advance(now)
        request = _Request(id=request_id, job=job, stall_after=job.stall_after)
        self._requests[request_id] = request
        if job.awaits_kv:
            self._deferred[request_id] = request
        else:
            self._arrived.append(request)
        self._cut()
        return progress + self._continue(self._work)

    def receive_kv(self, request_id: int, now: float) -> list[JobProgress]:
        """Let a request begin whose KV cache has come; without effect if it has ended."""
        progress = self.advance(now)
        request = self._deferred.pop(request_id, None)
        if request is not None:
            self._arrived.append(request)
            self._cut()
        return progress + self._continue(self._work)

    @property
    def kept_kv(self) -> frozenset[int]:
        """Ended requests whose KV caches are still there."""
        return frozenset(self._kept)

    def kept_tokens(self, request_id: int) -> int:
        """Prompt tokens of the KV cache that an ended request left; 0 if there is none."""
        return self._kept[request_id].job.prompt_tokens if request_id in self._kept else 0

    def release_kv(self, request_id: int, now: float) -> list[JobProgress]:
        """Free the KV cache that an ended request left; without effect if there is none."""
        progress = self.advance(now)
        request = self._kept.pop(request_id, None)
        if request is not None:
            self._release(request)
            self._publish()
            self._cut()
        return progress + self._continue(self._work)

    def advance(self, now: float) -> list[JobProgress]:
        """Advance to ``now``; return the progress, in order."""
        elapsed_s = max(0.0, now - self.now)
        if self.rate == 0:
            self.stopped_s += elapsed_s
            self.now = max(self.now, now)
            return []
        target = self._work + elapsed_s * self.rate
        progress = self._continue(target)
        self._work, self.now = target, max(self.now, now)
        return progress

    def due_at(self) -> float | None:
        """Time of the next report on the caller's clock, or before it; None if none is due."""
        if self.rate == 0:
            return None
        due = self._next_ready(self._work) if self._run is None else self._run.end
        return None if math.isinf(due) else self.now + max(0.0, due - self._work) / self.rate

    def abort(self, request_id: int, now: float) -> list[JobProgress]:
        """Drop a request. A step in progress still runs to its end."""
        progress = self.advance(now)
        request = self._requests.pop(request_id, None)
        if request is None:
            return progress
        request.gone = True
        if request.started_at_s is not None:
            self._gone[request_id] = self._use_until(request, self.now)
        self._deferred.pop(request_id, None)
        if request in self._arrived:
            self._arrived.remove(request)
        self._cut()
        return progress + self._continue(self._work)

    def set_rate(self, rate: float, now: float) -> list[JobProgress]:
        """Set the work rate from ``now`` on: 1 is healthy, 1/k is k times slower, 0 hangs."""
        progress = self.advance(now)
        self.rate = rate
        return progress + self._continue(self._work)

    def set_pace(self, factor: float, burst: int, now: float) -> list[JobProgress]:
        """Make decode steps take ``factor`` times the base time, reported ``burst`` tokens at a time."""
        progress = self.advance(now)
        run = self._run
        if run is not None and any(one.decodes for one, _ in run.chosen):
            # Progress within the current step is kept.
            done = (self._work - run.start) / run.step - run.done if run.step > _ROUNDING else 0.0
            run.step += self.costs.base_s * (factor - self.pace)
            run.start = self._work - (run.done + done) * run.step
        self.pace, self._burst = factor, burst
        self._cut()
        return progress

    def release_stalls(self, now: float) -> list[JobProgress]:
        """Resume stalled requests, and remove stalls still ahead."""
        progress = self.advance(now)
        for request in self._requests.values():
            if request.stall_after == 0 and request.started_at_s is not None:
                request.ready = self._ready(request, self._work)
            request.stall_after = None
        self._cut()
        return progress + self._continue(self._work)

    def use_so_far(self, request_id: int) -> SlotUse:
        """Slot use of a current request until the last update."""
        request = self._requests.get(request_id)
        if request is None or request.started_at_s is None:
            return SlotUse(started_at_s=None, slot_s=0.0, tokens=0)
        return self._use_until(request, self.now)

    def take_use(self, request_id: int) -> SlotUse:
        """Take the slot use of an ended request; once per request."""
        return self._gone.pop(request_id, SlotUse(started_at_s=None, slot_s=0.0, tokens=0))

    # -- time ---------------------------------------------------------------------------------------------------

    def _continue(self, target: float) -> list[JobProgress]:
        """Run all steps that end by ``target``."""
        progress: list[JobProgress] = []
        if self.rate == 0:
            return progress
        at = self._work
        while True:
            if self._run is None:
                self._plan(at)
            run = self._run
            if run is None:
                at = self._next_ready(at)
                if at > target + _ROUNDING:
                    return progress
                continue
            ended = run.ended(target)
            if ended > run.done:
                steps, run.done = ended - run.done, ended
                at = run.start + ended * run.step
                self._finish_steps(run, steps, at, progress)
            if run.done < run.count:
                return progress
            self._run = None
            self._leave_gone()
            self._publish()

    def _cut(self) -> None:
        """End the run with its current step, so that a change counts from the next."""
        if self._run is not None:
            self._run.count = min(self._run.count, self._run.done + 1)

    def _ready(self, request: _Request, begin: float) -> float:
        """Work at which the prefill may begin, so that a first step at the base time ends its latency."""
        return begin + max(0.0, request.latency_s - self.costs.base_s)

    def _next_ready(self, after: float) -> float:
        """Work at which the next latency ends; infinite if no request has one left."""
        ready = (one.ready for one in self._running if one.can_run)
        return min((at for at in ready if at > after + _ROUNDING), default=math.inf)

    def _at_s(self, work: float) -> float:
        return self.now + max(0.0, work - self._work) / self.rate

    def _use_until(self, request: _Request, at_s: float) -> SlotUse:
        assert request.started_at_s is not None  # noqa: S101 -- see the callers
        return SlotUse(
            started_at_s=request.started_at_s,
            slot_s=max(0.0, at_s - request.started_at_s),
            tokens=request.tokens,
            prompt_tokens=0 if request.job.awaits_kv else request.job.prompt_tokens,
            cached_tokens=request.hit_tokens,
        )

    # -- steps --------------------------------------------------------------------------------------------------

    def _plan(self, at: float) -> None:
        """Schedule the next step at ``at``, and repeat it while nothing can change."""
        self._waiting.extend(self._arrived)
        self._arrived.clear()
        self._leave_gone()
        chosen: list[tuple[_Request, int]] = []
        budget, preempted = self._schedule_running(at, chosen)
        if not preempted:
            self._schedule_waiting(at, budget, chosen)
        if not chosen:
            self._publish()
            return
        run = _Run(chosen=chosen, start=at, step=self._step(chosen, at))
        decoding = all(one.decodes for one, _ in chosen)
        if decoding and not preempted and not (self._waiting and len(self._running) < self.slots):
            run.count = self._repeats(run)
        self._run = run

    def _schedule_running(self, at: float, chosen: list[tuple[_Request, int]]) -> tuple[int, bool]:
        budget, preempted, place = self.budget, False, 0
        while place < len(self._running) and budget:
            request = self._running[place]
            place += 1
            if not request.can_run or request.ready > at + _ROUNDING or not self._fits(request):
                continue
            number = min(request.missing, budget)
            while not self._allocate(request, number) and request.blocks:
                victim = next(one for one in reversed(self._running) if one.blocks)
                self._preempt(victim)
                preempted = True
                place -= victim is request
            if request.blocks:
                chosen.append((request, number))
                budget -= number
        return budget, preempted

    def _schedule_waiting(self, at: float, budget: int, chosen: list[tuple[_Request, int]]) -> None:
        while self._waiting and len(self._running) < self.slots:
            request = self._waiting[0]
            self._find_prefix(request)
            if self._begins_idle(request, at):
                self._running.append(self._waiting.popleft())
                continue
            number = min(request.missing, budget)
            if not number or not self._fits(request):
                self._release(request)
                request.computed = 0
                return
            self._allocate(request, number)
            self._running.append(self._waiting.popleft())
            chosen.append((request, number))
            budget -= number

    def _begins_idle(self, request: _Request, at: float) -> bool:
        """Whether it gets a slot but no step yet: it has a latency, or stalls."""
        if request.started_at_s is not None:
            return not request.can_run
        if request.can_run and request.latency_s <= self.costs.base_s:
            return False
        request.started_at_s = self._at_s(at)
        request.ready = self._ready(request, at)
        return True

    def _find_prefix(self, request: _Request) -> None:
        """Use the cached blocks of its prompt; before its first token, and again after a preemption."""
        if request.blocks or request.computed or not request.job.blocks:
            return
        found = self._cache.cached(request.job.blocks, request.job.prompt_tokens, self.block_size)
        self._free -= self._cache.use(found)
        request.cached, request.looked_up = list(found), len(found)
        request.blocks, request.computed = len(found), len(found) * self.block_size
        if not request.tokens:
            request.hit_tokens = request.computed

    def _release(self, request: _Request) -> None:
        """Free its blocks; those in the prefix cache stay there until their places are needed."""
        self._free += request.blocks - len(request.cached) + self._cache.release(request.cached)
        request.blocks, request.cached, request.looked_up = 0, [], 0

    def _fits(self, request: _Request) -> bool:
        """Whether its prefill may begin: the KV cache must have room for all of it."""
        if request.blocks > len(request.cached):
            return True
        return -(-(request.computed + request.missing) // self.block_size) - request.blocks <= self._free

    def _allocate(self, request: _Request, number: int) -> bool:
        blocks = -(-(request.computed + number) // self.block_size) - request.blocks
        if blocks > self._free:
            return False
        self._free -= blocks
        request.blocks += blocks
        self._cache.shrink(self._free)
        # As in vLLM, blocks can be found from the step on that computes them.
        whole = (request.computed + number) // self.block_size
        for one in request.job.blocks[request.looked_up : whole]:
            if self._cache.add(one):
                request.cached.append(one)
        request.looked_up = max(request.looked_up, whole)
        return True

    def _preempt(self, request: _Request) -> None:
        """Free its blocks; all its tokens are computed again later."""
        self._release(request)
        request.computed = 0
        request.preempted += 1
        self._running.remove(request)
        self._waiting.appendleft(request)

    def _step(self, chosen: list[tuple[_Request, int]], at: float) -> float:
        """Duration of the step that begins at ``at``."""
        costs, paced = self.costs, False
        seconds = 0.0
        for request, number in chosen:
            if request.decodes:
                paced = True
                seconds += costs.decode_s
            else:
                seconds += number * (
                    costs.prefill_token_s + costs.context_token_s * (request.computed + number / 2)
                )
            if request.started_at_s is None:
                request.started_at_s = self._at_s(at)
        return seconds + costs.base_s * (self.pace if paced else 1.0)

    def _repeats(self, run: _Run) -> int:
        """Number of equal decode steps until a report, an end, a shortage of blocks or another request."""
        count = min(min(self._next_report(one), one.limit) - one.tokens for one, _ in run.chosen)
        count = min(count, self.block_size * (self._free // len(run.chosen)) or 1)
        if run.step > _ROUNDING:
            ready = self._next_ready(run.start)
            if not math.isinf(ready):
                count = min(count, math.ceil((ready - run.start - _ROUNDING) / run.step))
        return max(1, count)

    def _finish_steps(self, run: _Run, steps: int, at: float, progress: list[JobProgress]) -> None:
        output = 0
        prompts = 0
        for request, number in run.chosen:
            if request.gone:
                continue
            output_due = number == request.missing
            self._allocate(request, number * steps)
            request.computed += number * steps
            if not request.queried:
                request.queried = True
                self._prefix_queries += request.job.prompt_tokens
                self._prefix_hits += request.hit_tokens
            if not output_due:
                continue
            if not request.tokens:
                prompts += request.job.prompt_tokens
                self._prompt_tokens_cached += request.hit_tokens
            request.tokens += steps
            output += 1
            # As in vLLM, a preemption counts with the next token.
            self._preemptions += request.preempted
            request.preempted = 0
            self._report(request, at, progress)
        if output:
            self._iterations[prompts + output] += steps
        self._prompt_tokens += prompts
        self._generation_tokens += output * steps
        self._leave_gone()
        self._publish()

    def _report(self, request: _Request, at: float, progress: list[JobProgress]) -> None:
        finished = request.tokens >= request.job.tokens
        if not finished and request.tokens < self._next_report(request):
            return
        assert request.started_at_s is not None  # noqa: S101 -- it ran
        request.reported = request.tokens
        at_s = self._at_s(at)
        if finished:
            self._gone[request.id] = self._use_until(request, at_s)
            request.gone = True
            del self._requests[request.id]
        progress.append(
            JobProgress(
                job_id=request.id,
                tokens=request.tokens,
                finished=finished,
                started_at_s=request.started_at_s,
                at_s=at_s,
            )
        )

    def _next_report(self, request: _Request) -> int:
        # The first token is always reported alone; a stall reports the tokens before it.
        if request.reported == 0:
            return 1
        every = request.job.report_every
        if every == 0:
            return request.job.tokens
        report = request.reported + max(every, self._burst)
        return request.limit if request.reported < request.limit < report else report

    def _leave_gone(self) -> None:
        for request in self._running:
            if request.gone and request.job.keeps_kv and request.tokens >= request.job.tokens:
                self._kept[request.id] = request
            elif request.gone:
                self._release(request)
        self._running = [one for one in self._running if not one.gone]
        self._waiting = deque(one for one in self._waiting if not one.gone)

    def _publish(self) -> None:
        self.published = StepCounters(
            running=len(self._running),
            waiting=len(self._waiting) + len(self._deferred),
            kv_cache_ratio=1 - self._free / self.kv_blocks,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            prompt_tokens_cached=self._prompt_tokens_cached,
            preemptions=self._preemptions,
        )
