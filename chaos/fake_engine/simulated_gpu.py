"""The simulated GPU: slots, a first-come-first-served queue, and time per token.

A job is a prefill followed by tokens at a fixed pace; how many jobs run beside it changes nothing. This value
knows no HTTP, no clock and no event loop: the caller says what time it is, and gets back what has happened since.

Time passes twice here. *Seconds* are the caller's. *Work* is what the GPU gets done: it grows by ``rate`` per
second, so an engine that is four times slower has rate 0.25 and a hung one rate 0. Every job is laid out on the
axis of work, which makes a hang exact: nothing moves, and afterwards everything goes on where it stood.
"""

import math
from collections import deque
from dataclasses import dataclass, replace

# Half a microsecond: a timer that fires at the computed instant must find its token due in spite of rounding.
_ROUNDING = 5e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuJob:
    """What one call asks of the GPU.

    ``prefill_s`` ends with the first token; each later token takes ``token_s``. ``tokens`` is at least 1.
    After ``stall_after`` tokens the job holds its slot and makes no more until the stall is released.
    The first token is reported, and then every ``report_every`` ones; 0 asks for the end only.
    """

    prefill_s: float
    token_s: float
    tokens: int
    prompt_tokens: int = 0
    report_every: int = 1
    stall_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """``tokens`` of a job exist so far. A finished one left its slot at ``at_s``, on the caller's clock."""

    job_id: int
    tokens: int
    finished: bool
    started_at_s: float
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUse:
    """What a job that is gone has cost. ``started_at_s`` is None for one that never got a slot."""

    started_at_s: float | None
    slot_s: float
    tokens: int


@dataclass(slots=True, kw_only=True)
class _Running:
    job: GpuJob
    start: float  # on the axis of work
    started_at_s: float
    token_s: float  # the job's, at the pace of now
    reported: int = 0
    stall_after: int | None = None

    @property
    def limit(self) -> int:
        """Tokens it will make unless somebody helps."""
        return self.job.tokens if self.stall_after is None else min(self.stall_after, self.job.tokens)

    def token_at(self, index: int) -> float:
        """Work at which token ``index`` (1-based) exists; token 0 stands for the start."""
        return self.start + (self.job.prefill_s + (index - 1) * self.token_s if index else 0.0)

    @property
    def end(self) -> float:
        return self.token_at(self.job.tokens) if self.limit == self.job.tokens else math.inf

    def tokens(self, work: float) -> int:
        spent = work - self.start + _ROUNDING
        if spent < self.job.prefill_s:
            return 0
        if self.token_s <= 0:
            return self.limit
        return min(self.limit, 1 + int((spent - self.job.prefill_s) / self.token_s))

    def change_pace(self, token_s: float, work: float) -> None:
        """From ``work`` on each token takes this long; the part of the next one that exists stays."""
        decoded = work - self.start - self.job.prefill_s
        if decoded > 0 and self.token_s > 0:
            self.start = work - self.job.prefill_s - decoded / self.token_s * token_s
        self.token_s = token_s


class SimulatedGpu:
    """Slots and a queue, fed with the time."""

    def __init__(self, *, slots: int, now: float) -> None:
        self._slots = slots
        self._at_s = now
        self._work = 0.0
        self._rate = 1.0
        self._pace = 1.0
        self._burst = 1
        self._stopped_s = 0.0
        self._running: dict[int, _Running] = {}
        self._waiting: deque[tuple[int, GpuJob]] = deque()
        self._gone: dict[int, SlotUse] = {}
        self._gone_tokens = 0
        self._gone_prompt_tokens = 0

    @property
    def rate(self) -> float:
        return self._rate

    @property
    def pace(self) -> float:
        """How many times longer tokens after the first take."""
        return self._pace

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def stopped_s(self) -> float:
        """Seconds spent at rate 0 until the last moment it was told of."""
        return self._stopped_s

    @property
    def generated_tokens(self) -> int:
        """Tokens made by all jobs so far."""
        return self._gone_tokens + sum(r.tokens(self._work) for r in self._running.values())

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens of all jobs whose prefill has ended: whole prompts at a time."""
        return self._gone_prompt_tokens + sum(
            r.job.prompt_tokens for r in self._running.values() if r.tokens(self._work)
        )

    def cached_tokens(self) -> int:
        """Prompt and generated tokens of the running jobs: what the KV cache holds."""
        return sum(r.job.prompt_tokens + r.tokens(self._work) for r in self._running.values())

    def submit(self, job_id: int, job: GpuJob, now: float) -> list[JobProgress]:
        progress = self.advance(now)
        self._waiting.append((job_id, job))
        self._admit(self._work, now)
        return progress

    def advance(self, now: float) -> list[JobProgress]:
        """Let time pass until ``now``; return what came into being, ends in the order they happened."""
        elapsed_s = max(0.0, now - self._at_s)
        if self._rate == 0:
            self._stopped_s += elapsed_s
            self._at_s = max(self._at_s, now)
            return []
        target = self._work + elapsed_s * self._rate
        progress: list[JobProgress] = []
        while self._running:
            job_id, first = min(self._running.items(), key=lambda item: item[1].end)
            if first.end > target + _ROUNDING:
                break
            # A slot is taken over when it was left, not when somebody looked: coarse timers cost no capacity.
            ended = max(first.end, self._work)
            ended_at_s = self._at_s + (ended - self._work) / self._rate
            self._leave(job_id, ended_at_s, first.job.tokens)
            progress.append(
                JobProgress(
                    job_id=job_id,
                    tokens=first.job.tokens,
                    finished=True,
                    started_at_s=first.started_at_s,
                    at_s=ended_at_s,
                )
            )
            self._admit(ended, ended_at_s)
        self._work, self._at_s = target, max(self._at_s, now)
        for job_id, running in self._running.items():
            tokens = running.tokens(target)
            if tokens >= self._next_report(running):
                running.reported = tokens
                progress.append(
                    JobProgress(
                        job_id=job_id,
                        tokens=tokens,
                        finished=False,
                        started_at_s=running.started_at_s,
                        at_s=now,
                    )
                )
        return progress

    def due_at(self) -> float | None:
        """When the next report or end is due, on the caller's clock; None when nothing will happen by itself."""
        if self._rate == 0 or not self._running:
            return None
        due = math.inf
        for running in self._running.values():
            report = self._next_report(running)
            due = min(due, running.end, running.token_at(report) if report <= running.limit else math.inf)
        return None if math.isinf(due) else self._at_s + max(0.0, due - self._work) / self._rate

    def generated(self, job_id: int) -> int:
        """Tokens that exist of a running job at the last moment it was told of; 0 for any other."""
        running = self._running.get(job_id)
        return 0 if running is None else running.tokens(self._work)

    def abort(self, job_id: int, now: float) -> list[JobProgress]:
        """Drop a job wherever it is; its slot goes to the next in the queue at once, unless the GPU hangs."""
        progress = self.advance(now)
        if job_id in self._running:
            self._leave(job_id, now, self.generated(job_id))
            self._admit(self._work, now)
        elif job_id not in self._gone:
            self._waiting = deque(entry for entry in self._waiting if entry[0] != job_id)
        return progress

    def set_rate(self, rate: float, now: float) -> list[JobProgress]:
        """Work per second from ``now`` on: 1 is healthy, 1/k is k times slower, 0 hangs."""
        progress = self.advance(now)
        self._rate = rate
        self._admit(self._work, now)
        return progress

    def set_pace(self, factor: float, burst: int, now: float) -> list[JobProgress]:
        """Let tokens after the first take ``factor`` times as long, and be reported ``burst`` at a time."""
        progress = self.advance(now)
        self._pace, self._burst = factor, burst
        for running in self._running.values():
            running.change_pace(running.job.token_s * factor, self._work)
        return progress

    def use_so_far(self, job_id: int) -> SlotUse:
        """What a job that is not gone has cost until the last moment it was told of."""
        running = self._running.get(job_id)
        if running is None:
            return SlotUse(started_at_s=None, slot_s=0.0, tokens=0)
        return SlotUse(
            started_at_s=running.started_at_s,
            slot_s=max(0.0, self._at_s - running.started_at_s),
            tokens=running.tokens(self._work),
        )

    def release_stalls(self, now: float) -> list[JobProgress]:
        """Let stalled jobs, and those still on their way to a stall, go on to their ends."""
        progress = self.advance(now)
        for running in self._running.values():
            made = running.tokens(self._work)
            if made == running.stall_after:
                running.start += self._work - running.token_at(made)
            running.stall_after = None
        self._waiting = deque((job_id, replace(job, stall_after=None)) for job_id, job in self._waiting)
        return progress

    def take_use(self, job_id: int) -> SlotUse:
        """What a job that is gone has cost; asked once per job."""
        return self._gone.pop(job_id, SlotUse(started_at_s=None, slot_s=0.0, tokens=0))

    def _leave(self, job_id: int, at_s: float, tokens: int) -> None:
        running = self._running.pop(job_id)
        self._gone_tokens += tokens
        self._gone_prompt_tokens += running.job.prompt_tokens if tokens else 0
        self._gone[job_id] = SlotUse(
            started_at_s=running.started_at_s,
            slot_s=max(0.0, at_s - running.started_at_s),
            tokens=tokens,
        )

    def _admit(self, work: float, at_s: float) -> None:
        # A hung scheduler schedules nobody, free slot or not.
        while self._rate > 0 and self._waiting and len(self._running) < self._slots:
            job_id, job = self._waiting.popleft()
            self._running[job_id] = _Running(
                job=job,
                start=work,
                started_at_s=at_s,
                token_s=job.token_s * self._pace,
                stall_after=job.stall_after,
            )

    def _next_report(self, running: _Running) -> int:
        # The first token is always reported alone; a stall reports the tokens before it.
        if running.reported == 0:
            return 1
        every = running.job.report_every
        if every == 0:
            return running.job.tokens
        report = running.reported + max(every, self._burst)
        return running.limit if running.reported < running.limit < report else report
