"""Data-parallel ranks of a fake engine: one scheduler each, which share nothing.

As in vLLM, a request goes to the rank with the fewest requests in flight, or to the one that its
``X-data-parallel-rank`` header names. A hung rank keeps its requests, and the others work on.
"""

from collections import Counter
from collections.abc import Sequence

from chaos.fake_engine.simulated_gpu import JobProgress
from chaos.fake_engine.step_scheduler import StepRequest, StepScheduler


class DataParallelRanks:
    """Schedulers of all ranks; request ids are unique over all."""

    def __init__(self, ranks: Sequence[StepScheduler]) -> None:
        self.ranks = tuple(ranks)
        self._turn = 0
        self._held: Counter[int] = Counter()

    def choose(self) -> int:
        """Rank of the next request: the one with the fewest, in turn among equals."""
        count = len(self.ranks)
        turns = [(self._turn + place) % count for place in range(count)]
        chosen = min(turns, key=lambda rank: self._held[rank])
        self._turn = (chosen + 1) % count
        return chosen

    def submit(self, request_id: int, job: StepRequest, now: float, *, rank: int) -> list[JobProgress]:
        """Give the request to ``rank``."""
        self._held[rank] += 1
        return self.ranks[rank].submit(request_id, job, now)

    def advance(self, now: float) -> list[JobProgress]:
        """Advance all to ``now``."""
        return [news for rank in self.ranks for news in rank.advance(now)]

    def due_at(self) -> float | None:
        """Time of the next report of any."""
        return min((due for rank in self.ranks if (due := rank.due_at()) is not None), default=None)

    def abort(self, request_id: int, now: float, *, rank: int) -> list[JobProgress]:
        """Drop a request of ``rank``, or forget one that has ended; once per request."""
        self._held[rank] -= 1
        return self.advance(now) + self.ranks[rank].abort(request_id, now)

    def receive_kv(self, request_id: int, now: float, *, rank: int) -> list[JobProgress]:
        """Let a request of ``rank`` begin whose KV cache has come."""
        return self.ranks[rank].receive_kv(request_id, now)

    def kept_tokens(self, request_id: int) -> int:
        """Prompt tokens of the KV cache that this ended request left; 0 if there is none."""
        return sum(rank.kept_tokens(request_id) for rank in self.ranks)

    def release_kv(self, request_id: int, now: float) -> list[JobProgress]:
        """Free the KV cache that an ended request left."""
        return [news for rank in self.ranks for news in rank.release_kv(request_id, now)]

    def release_all_kv(self, now: float) -> list[JobProgress]:
        """Free the KV caches that all ended requests left."""
        return [news for rank in self.ranks for one in rank.kept_kv for news in rank.release_kv(one, now)]

    def set_pace(self, factor: float, burst: int, now: float) -> list[JobProgress]:
        """Set the pace of all."""
        return [news for rank in self.ranks for news in rank.set_pace(factor, burst, now)]

    def release_stalls(self, now: float) -> list[JobProgress]:
        """Resume stalled requests of all."""
        return [news for rank in self.ranks for news in rank.release_stalls(now)]

    def skip(self, since_s: float, now: float) -> list[JobProgress]:
        """Take back the time since ``since_s``, in which the process was stopped."""
        progress = []
        for rank in self.ranks:
            rate_before = rank.rate
            progress += rank.set_rate(0.0, since_s)
            progress += rank.set_rate(rate_before, now)
        return progress
