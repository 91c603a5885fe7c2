"""Calls of a route or a pool within and beyond its objectives, since the server started.

Requests are counted by their result: a complete answer is good; refused, failed and timed-out requests are bad.
Callers who leave and their own errors do not count. A failed first try counts its request and a successful retry
its answer, so a retried request is good. Latency objectives count complete answers only; those for the time
between tokens count gaps between tokens, as agents report them of whole engines.
"""

from collections.abc import Mapping
from typing import Final

from engine.report import TokenGaps
from policies.objectives import Objective, ObjectiveKind
from xds_server.model.pool_traffic import CallResult

COUNTED: Final = frozenset({CallResult.SUCCESS, CallResult.FAILURE, CallResult.SHED})
"""Results of a first try that count its request."""


class ObjectiveCounts:
    """Calls of one objective, or gaps between tokens; ``good`` of ``calls``."""

    __slots__ = ("calls", "good", "objective")

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.calls = self.good = 0.0


class ObjectivesCount:
    """All objectives of a route or a pool."""

    __slots__ = ("_gaps", "_requests", "_times", "counts")

    def __init__(self, objectives: tuple[Objective, ...]) -> None:
        self.counts: Mapping[str, ObjectiveCounts] = {one.name: ObjectiveCounts(one) for one in objectives}
        self._requests = self._of(ObjectiveKind.GOOD)
        self._times = self._of(ObjectiveKind.FIRST_TOKEN, ObjectiveKind.TOTAL)
        self._gaps = self._of(ObjectiveKind.BETWEEN_TOKENS)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What is counted."""
        return tuple(one.objective for one in self.counts.values())

    def _of(self, *kinds: ObjectiveKind) -> list[ObjectiveCounts]:
        return [one for one in self.counts.values() if one.objective.kind in kinds]

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

    def add_token_gaps(self, gaps: TokenGaps) -> None:
        """These gaps between tokens ended."""
        for one in self._gaps:
            one.calls += gaps.total
            one.good += gaps.within(one.objective.limit_s)


def same_counts(objectives: tuple[Objective, ...], before: ObjectivesCount | None) -> ObjectivesCount | None:
    """Counts of these objectives, None without any; ``before`` if it has the same ones."""
    if not objectives:
        return None
    return before if before is not None and before.objectives == objectives else ObjectivesCount(objectives)
