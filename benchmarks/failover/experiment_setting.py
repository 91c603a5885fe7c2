"""The numbers of one experiment: how many engines, how fast, how much load, how long.

The defaults are a bench of 8 engines x 8 slots with a mean service of 0.5 s (0.28 to 0.72 s, even), a caller's
patience of 10 s, and a fault of 19 s after 8 s of peace with 11 s to recover. Their sizes matter less than their
ratios: 80 % load leaves half of such a fleet 60 % short.
"""

from dataclasses import dataclass

PREFILL_S = 0.05
TOKEN_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One sort of engine; ``slowness`` multiplies every time it needs."""

    slots: int = 8
    slowness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSetting:
    """One experiment without its fault. Times in seconds.

    ``kinds`` are dealt out to the engines in turn, and so are ``zones``. ``demand`` is the relative share of
    requests that each proxy gets, one entry per proxy. ``max_wait_s`` is what the pool's policy allows, and what
    the prediction is made for. ``tokens`` is the shortest and the longest answer; lengths between are as likely.
    """

    engines: int = 8
    kinds: tuple[EngineKind, ...] = (EngineKind(),)
    zones: int = 1
    demand: tuple[float, ...] = (1.0,)
    load_percent: float = 80.0
    seed: int = 1
    max_wait_s: float = 2.0
    deadline_s: float = 10.0
    before_s: float = 8.0
    fault_s: float = 19.0
    after_s: float = 11.0
    tokens: tuple[int, int] = (24, 68)
    streaming_share: float = 0.0
    gate: bool = False
    engine_processes: int = 2

    def kind(self, engine: int) -> EngineKind:
        """The kind of an engine."""
        return self.kinds[engine % len(self.kinds)]

    def zone(self, engine: int) -> str:
        """Where an engine stands: a, b, c, ..."""
        return chr(ord("a") + engine % self.zones)

    def proxy_zone(self, proxy: int) -> str:
        """Where a proxy stands."""
        return chr(ord("a") + proxy % self.zones)

    @property
    def mean_service_s(self) -> float:
        """Of an engine that is not slow."""
        shortest, longest = self.tokens
        return service_s((shortest + longest) / 2)

    @property
    def longest_service_s(self) -> float:
        """Of the slowest engine."""
        return service_s(self.tokens[1]) * max(kind.slowness for kind in self._used_kinds)

    @property
    def slots(self) -> int:
        """Of all engines."""
        return sum(self.kind(engine).slots for engine in range(self.engines))

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that the healthy fleet finishes when it is never idle."""
        return sum(self.engine_capacity_per_s(engine) for engine in range(self.engines))

    @property
    def rate_per_s(self) -> float:
        """Requests offered per second."""
        return self.capacity_per_s * self.load_percent / 100.0

    @property
    def seconds(self) -> float:
        """How long requests arrive."""
        return self.before_s + self.fault_s + self.after_s

    @property
    def _used_kinds(self) -> tuple[EngineKind, ...]:
        return tuple(self.kind(engine) for engine in range(self.engines))

    def engine_capacity_per_s(self, engine: int) -> float:
        """Requests per second of one healthy engine."""
        kind = self.kind(engine)
        return kind.slots / (self.mean_service_s * kind.slowness)


def service_s(tokens: float) -> float:
    """Seconds an answer of ``tokens`` holds a slot of a normal engine."""
    return PREFILL_S + (tokens - 1) * TOKEN_S
