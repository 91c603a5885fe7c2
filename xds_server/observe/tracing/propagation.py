"""Progress of one change to proxies, by type.

Times are monotonic. Spans do not scale with proxies: each type has counts, the first, last and slowest proxy, and
the first few refusals.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from xds_server.ledger.event import Event
from xds_server.publish import Nack

MAX_NACKS: Final = 5
"""Refusals listed per type; further ones are counted."""

_SAME_MOMENT_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPolicies:
    """Policies behind a change."""

    version: int = 0
    digest: str = ""
    author: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedNack:
    """A proxy refused (NACK) a response."""

    node: str
    at_s: float
    reason: str
    resources: tuple[str, ...]
    places: tuple[str, ...]


@dataclass(eq=False, slots=True)
class Propagation:
    """Progress of one resource type; ``waiting``: proxies without answer, with the time of the write."""

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
        """This type was written to a proxy. Streams send only the latest version, so it carries the change."""
        if self.waiting.get(node, 0.0) is not None:
            return
        self.waiting[node] = self.last_push_s = now_s
        if not self.pushed:
            self.first_push_s = now_s
        self.pushed += 1

    def on_ack(self, node: str, latency_s: float, now_s: float) -> None:
        """A proxy accepted (ACK) a response written ``latency_s`` ago."""
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
        """A proxy refused (NACK) this type; returns whether the refusal concerns this change."""
        if self.waiting.get(nack.node.id) is None:
            return False
        del self.waiting[nack.node.id]
        self.nacked += 1
        if len(self.nacks) < MAX_NACKS:
            self.nacks.append(traced_nack(nack, now_s))
        return True

    def on_disconnect(self, node: str) -> None:
        """A proxy has disconnected."""
        if self.waiting.pop(node, 0.0) is None:
            self.expected -= 1  # before the write

    @property
    def unsent(self) -> int:
        """Proxies without a write."""
        return sum(pushed_s is None for pushed_s in self.waiting.values())

    def _answers(self, node: str, latency_s: float, now_s: float) -> float | None:
        pushed_s = self.waiting.get(node)
        # The write is timed in two places; both use the same clock at the same moment.
        return pushed_s if pushed_s is not None and now_s - latency_s >= pushed_s - _SAME_MOMENT_S else None


@dataclass(eq=False, slots=True, kw_only=True)
class TracedChange:
    """A change published at ``published_s``; ``events``: decisions, most important first.

    ``events`` holds the first few of ``decided``. ``offered_s``: arrival of new policy texts. ``detected_s``:
    start of the deciding evidence. ``news_s``: arrival of the oldest news. ``leaving``: engines ejected by the
    change and not back in rotation.
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
    """Trace data of a refusal."""
    return TracedNack(
        node=nack.node.id,
        at_s=now_s,
        reason=nack.reason,
        resources=tuple(item.name for item in nack.resources[:MAX_NACKS]),
        places=_first(place for item in nack.resources for place in item.origins),
    )


def _first(places: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(places))[:MAX_NACKS]
