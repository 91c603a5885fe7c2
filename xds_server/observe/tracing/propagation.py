"""One change on its way to proxies: what it began with, and how far it has come, type by type.

Times are monotonic. A thousand proxies are not a thousand spans: of each type there are counts, the first, the
last and the slowest, and the first few refusals.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from xds_server.ledger.event import Event
from xds_server.publish import Nack

MAX_NACKS: Final = 5
"""Refusals told per type; the others are counted."""

_SAME_MOMENT_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPolicies:
    """The policies a change was decided by."""

    version: int = 0
    digest: str = ""
    author: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedNack:
    """A proxy refused a response."""

    node: str
    at_s: float
    reason: str
    resources: tuple[str, ...]
    places: tuple[str, ...]


@dataclass(eq=False, slots=True)
class Propagation:
    """How one type of resources reaches proxies; ``waiting`` has those that have not answered, and when each was
    written to."""

    waiting: dict[str, float | None]
    expected: int = 0
    pushed: int = 0
    first_push_s: float = 0.0
    last_push_s: float = 0.0
    acked: int = 0
    first_ack_s: float = 0.0
    last_ack_s: float = 0.0
    slowest: str = ""
    slowest_s: float = 0.0
    nacked: int = 0
    nacks: list[TracedNack] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.expected = len(self.waiting)

    def on_push(self, node: str, now_s: float) -> None:
        """Something of this type was written to a proxy. Streams know only the newest: it carries the change."""
        if self.waiting.get(node, 0.0) is not None:
            return
        self.waiting[node] = self.last_push_s = now_s
        if not self.pushed:
            self.first_push_s = now_s
        self.pushed += 1

    def on_ack(self, node: str, latency_s: float, now_s: float) -> None:
        """A proxy confirmed what was written to it ``latency_s`` ago."""
        pushed_s = self._answers(node, latency_s, now_s)
        if pushed_s is None:
            return
        del self.waiting[node]
        self.last_ack_s = now_s
        if not self.acked:
            self.first_ack_s = now_s
        self.acked += 1
        if now_s - pushed_s >= self.slowest_s:
            self.slowest, self.slowest_s = node, now_s - pushed_s

    def on_nack(self, nack: Nack, now_s: float) -> bool:
        """A proxy refused something of this type; whether it was this change's."""
        if self.waiting.get(nack.node.id) is None:
            return False
        del self.waiting[nack.node.id]
        self.nacked += 1
        if len(self.nacks) < MAX_NACKS:
            self.nacks.append(traced_nack(nack, now_s))
        return True

    def on_disconnect(self, node: str) -> None:
        """A proxy has left."""
        if self.waiting.pop(node, 0.0) is None:
            self.expected -= 1  # before it was told

    @property
    def unsent(self) -> int:
        """Proxies that were not written to."""
        return sum(pushed_s is None for pushed_s in self.waiting.values())

    def _answers(self, node: str, latency_s: float, now_s: float) -> float | None:
        pushed_s = self.waiting.get(node)
        # Both times of the write are taken at the same moment, by the same clock, in two places.
        return pushed_s if pushed_s is not None and now_s - latency_s >= pushed_s - _SAME_MOMENT_S else None


@dataclass(eq=False, slots=True, kw_only=True)
class TracedChange:
    """A change that was published at ``published_s``; ``events`` are what was decided, the weightiest first.

    Of ``decided`` events these are the first few. ``offered_s`` is when the texts of new policies came,
    ``detected_s`` since when the deciding evidence had been so, ``news_s`` when the oldest news of the round came.
    ``leaving`` are the engines that leave by it and have not come back.
    """

    change: str
    cause: str
    events: tuple[Event, ...]
    decided: int
    policies: TracedPolicies
    published_s: float
    stages_s: Mapping[str, float]
    propagations: dict[str, Propagation]
    offered_s: float | None = None
    detected_s: float | None = None
    news_s: float | None = None
    leaving: set[tuple[str, str]] = field(default_factory=set)
    last_request_s: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def waiting(self) -> bool:
        """Whether a proxy has not answered yet."""
        return any(spread.waiting for spread in self.propagations.values())


def traced_nack(nack: Nack, now_s: float) -> TracedNack:
    """What a trace keeps of a refusal."""
    return TracedNack(
        node=nack.node.id,
        at_s=now_s,
        reason=nack.reason,
        resources=tuple(item.name for item in nack.resources[:MAX_NACKS]),
        places=_first(place for item in nack.resources for place in item.origins),
    )


def _first(places: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(places))[:MAX_NACKS]
