"""One request in a proxy, with its attempts at engines, as in Envoy's router."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from chaos.simulator.header_rules import NO_HEADERS, Headers
from chaos.simulator.proxy_config import RouteConfig
from chaos.simulator.simulated_clock import TimerHandle
from chaos.simulator.simulated_engine import SimulatedCall
from chaos.simulator.simulated_sidecar import SidecarCall
from chaos.testbed.request_shape import RequestKind

_ANY_RESET: Final = frozenset({"reset", "5xx", "gateway-error"})
_GATEWAY: Final = frozenset({502, 503, 504})


class DownstreamCaller(Protocol):
    """The caller of a proxy."""

    def headers(self, status: int, *, refusal: str = "", fallback: str = "", session: str = "") -> None:
        """Response headers; ``session`` names the engine of its strict session from now on."""

    def tokens(self, total: int) -> None:
        """``total`` tokens of a stream have arrived."""

    def ended(self) -> None:
        """The answer is complete."""

    def failed_inside(self) -> None:
        """A started stream ends with an error event."""

    def broken(self) -> None:
        """The answer is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentFields:
    """What a caller sends, lengths apart.

    ``session``: its conversation; ``kept_by``: the engine that an answer to it named. ``estimated_tokens``: what
    quotas of tokens count.
    """

    session: str = ""
    kept_by: str = ""
    headers: Headers = field(default_factory=lambda: NO_HEADERS)
    estimated_tokens: float = 0.0


NO_FIELDS: Final = SentFields()


@dataclass(slots=True, kw_only=True, eq=False)
class ProxiedRequest:
    """A request. ``final`` is the attempt whose answer goes to the caller; ``batch``: its route has that class.

    Retries count against the budget of ``pool``, where it began. ``entries`` are the used entries of its route by
    pool. ``prefiller`` is the prefill engine that a fixed list named; empty without one. ``session`` is its
    conversation, ``kept_by`` the engine that its strict session names.
    ``headers`` are those of callers; ``hurried``: it has a deadline.
    """

    request_id: str
    kind: RequestKind
    streaming: bool
    batch: bool
    prompt_tokens: int
    max_tokens: int
    caller: DownstreamCaller
    rules: RouteConfig
    pool: str
    began_s: float
    tries: list["UpstreamAttempt"] = field(default_factory=list)
    made: int = 0
    retries_left: int = 0
    holds_retry: bool = False
    final: "UpstreamAttempt | None" = None
    done: bool = False
    backing_off: bool = False
    timers: list[TimerHandle] = field(default_factory=list)
    idle: TimerHandle | None = None
    tried: set[str] = field(default_factory=set)
    entries: Counter[str] = field(default_factory=Counter)
    prefiller: str = ""
    session: str = ""
    kept_by: str = ""
    headers: Headers = field(default_factory=lambda: NO_HEADERS)
    hurried: bool = False


class AttemptRouter(Protocol):
    """Starts attempts and handles their results."""

    @property
    def now_s(self) -> float:
        """Current simulated time."""

    def on_headers(self, one: "UpstreamAttempt", retry_after_s: float | None) -> None:
        """Response headers of an engine."""

    def on_data(self, one: "UpstreamAttempt") -> None:
        """Data arrived."""

    def on_ended(self, one: "UpstreamAttempt", *, failed_inside: bool = False) -> None:
        """The answer is complete."""

    def on_reset(self, one: "UpstreamAttempt") -> None:
        """The connection was reset."""


class UpstreamAttempt:
    """One attempt, called back by the engine; the proxy decides what follows."""

    __slots__ = (
        "ask", "call", "done", "engine", "first_byte_s", "idle", "named", "number", "pool", "proxy", "started_s",
        "status", "timer",
    )  # fmt: skip

    def __init__(self, proxy: AttemptRouter, ask: ProxiedRequest, pool: str, engine: str, number: int) -> None:
        self.proxy = proxy
        self.ask = ask
        self.pool = pool
        self.engine = engine
        self.number = number
        self.started_s = proxy.now_s
        self.first_byte_s = 0.0
        self.named = False
        self.status = 0
        self.call: SimulatedCall | SidecarCall | None = None
        self.done = False
        self.timer: TimerHandle | None = None
        self.idle: TimerHandle | None = None

    def headers(self, status: int, retry_after_s: float | None = None) -> None:
        """From the engine."""
        if not self.done:
            self.status = status
            self.first_byte_s = self.proxy.now_s - self.started_s
            self.proxy.on_headers(self, retry_after_s)

    def tokens(self, total: int) -> None:
        """From the engine."""
        if not self.done:
            self.proxy.on_data(self)
            if self.ask.final is self:
                self.ask.caller.tokens(total)

    def ended(self) -> None:
        """From the engine."""
        if not self.done:
            self.proxy.on_ended(self)

    def failed_inside(self) -> None:
        """From the engine; a proxy counts it as a success."""
        if not self.done:
            self.proxy.on_ended(self, failed_inside=True)

    def reset(self) -> None:
        """From the engine."""
        if not self.done:
            self.proxy.on_reset(self)

    def disarm(self) -> None:
        """Cancel its timers."""
        for timer in (self.timer, self.idle):
            if timer is not None:
                timer.cancel()
        self.timer = self.idle = None


def is_retriable_status(rules: RouteConfig, status: int) -> bool:
    """Whether an answer with this status is retried."""
    retried = rules.retried
    return (
        ("retriable-status-codes" in retried and status in rules.statuses)
        or ("5xx" in retried and status >= 500)
        or ("gateway-error" in retried and status in _GATEWAY)
        or ("retriable-4xx" in retried and status == 409)
    )


def is_retriable_reset(retried: Collection[str], *, connected: bool) -> bool:
    """Whether an attempt without an answer is retried; ``connected``: the engine had accepted the connection."""
    if not connected and ("connect-failure" in retried or "reset-before-request" in retried):
        return True
    return not _ANY_RESET.isdisjoint(retried)
