"""Calls of a route or a pool within and beyond its objectives, since the server started.

Requests are counted by their result: a complete answer is good; refused, failed and timed-out requests are bad.
Callers who leave and their own errors do not count. A failed first try counts its request and a successful retry
its answer, so a retried request is good. Latency objectives count complete answers only.
"""

from collections.abc import Mapping
from typing import Final

from policies.objectives import Objective, ObjectiveKind
from xds_server.model.pool_traffic import CallResult

COUNTED: Final = frozenset({CallResult.SUCCESS, CallResult.FAILURE, CallResult.SHED})
"""Results of a first try that count its request."""


class ObjectiveCounts:
    """Calls of one objective; ``good`` of ``calls``."""

    __slots__ = ("calls", "good", "objective")

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.calls = self.good = 0.0


class ObjectivesCount:
    """All objectives of a route or a pool."""

    __slots__ = ("_requests", "_times", "counts")

    def __init__(self, objectives: tuple[Objective, ...]) -> None:
        self.counts: Mapping[str, ObjectiveCounts] = {one.name: ObjectiveCounts(one) for one in objectives}
        self._requests = [one for one in self.counts.values() if one.objective.kind is ObjectiveKind.GOOD]
        self._times = [one for one in self.counts.values() if one.objective.kind is not ObjectiveKind.GOOD]

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What is counted."""
        return tuple(one.objective for one in self.counts.values())

    def add_request(self, weight: float) -> None:
        """A request arrived."""
        for one in self._requests:
            one.calls += weight

    def add_answer(self, duration_s: float, first_byte_s: float, weight: float) -> None:
        """A request got a complete answer; ``first_byte_s`` 0: not a stream."""
        for one in self._requests:
            one.good += weight
        for one in self._times:
            took_s = duration_s if one.objective.kind is ObjectiveKind.TOTAL else first_byte_s
            if took_s:
                one.calls += weight
                if took_s <= one.objective.limit_s:
                    one.good += weight


def same_counts(objectives: tuple[Objective, ...], before: ObjectivesCount | None) -> ObjectivesCount | None:
    """Counts of these objectives, None without any; ``before`` if it has the same ones."""
    if not objectives:
        return None
    return before if before is not None and before.objectives == objectives else ObjectivesCount(objectives)
