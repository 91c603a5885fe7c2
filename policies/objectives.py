"""Objectives of a route or a pool: what callers are promised, measured from access logs.

An objective names a share of calls and, for latency, a limit. The rest of the calls is its error budget; the burn
rate is the share of bad calls over that budget: 1 spends it exactly, 14.4 spends a month's within two days.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import approximated
from policies.field_targets import Xds, exported_alike
from policies.quantity import Duration

_MEASURED: Final = exported_alike(Xds.NONE, approximated("measured by Switchgear; objects do not carry it"))
_SHARES: Final = (("p95", 0.95), ("p99", 0.99))


class ObjectiveKind(StrEnum):
    """What an objective measures."""

    GOOD = "good"  # complete answers
    FIRST_TOKEN = "first-token"  # time to the first byte of streams  # noqa: S105
    TOTAL = "total"  # time to the end of the response
    BETWEEN_TOKENS = "between-tokens"  # from token to token, of pools only


OBJECTIVE_NAMES: Final = (
    ObjectiveKind.GOOD.value,
    *(f"{kind.value}-{share}" for kind in ObjectiveKind if kind is not ObjectiveKind.GOOD for share, _ in _SHARES),
)
"""Names of all objectives that a route or a pool can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One objective: ``target`` is the share of good calls, ``limit_s`` the longest good call (0: any).

    Objectives for the time between tokens judge gaps between tokens instead of calls.
    """

    name: str
    kind: ObjectiveKind
    target: float
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnAlert:
    """Burn rate above ``factor`` over the long window; the short one resolves it."""

    factor: float
    long: str
    short: str


FAST_BURN: Final = BurnAlert(factor=14.4, long="1h", short="5m")
"""2 % of a month's budget in an hour."""

SLOW_BURN: Final = BurnAlert(factor=6, long="6h", short="30m")
"""5 % of a month's budget in six hours."""


class LatencyObjective(Spec):
    """Limits of a latency by percentile."""

    p95: Duration | None = documented_field(
        None, "Limit for 95 of 100 calls.", unit="duration", targets=_MEASURED, gt=0, le=3600
    )
    p99: Duration | None = documented_field(
        None, "Limit for 99 of 100 calls.", unit="duration", targets=_MEASURED, gt=0, le=3600
    )


class Objectives(Spec):
    """Objectives of a route or a pool."""

    good_percent: float | None = documented_field(
        None,
        "Share of requests that get a complete answer. Refused, failed and timed-out requests are bad; callers "
        "who leave, and their own errors, do not count.",
        unit="%",
        targets=_MEASURED,
        ge=50,
        le=99.999,
    )
    first_token: LatencyObjective = documented_field(
        LatencyObjective,
        "Time to the first byte of streams: the first token where the pool has firstTokenGate, else the headers.",
    )
    total: LatencyObjective = documented_field(LatencyObjective, "Time to the end of the response.")

    def all(self) -> Iterator[Objective]:
        """Every objective that is set."""
        if self.good_percent is not None:
            yield Objective(name=ObjectiveKind.GOOD.value, kind=ObjectiveKind.GOOD, target=self.good_percent / 100)
        yield from _latencies(ObjectiveKind.FIRST_TOKEN, self.first_token)
        yield from _latencies(ObjectiveKind.TOTAL, self.total)


class TokenGapObjective(Spec):
    """Limits of the time between tokens by percentile."""

    p95: Duration | None = documented_field(
        None, "Limit for 95 of 100 gaps between tokens.", unit="duration", targets=_MEASURED, gt=0, le=3600
    )
    p99: Duration | None = documented_field(
        None, "Limit for 99 of 100 gaps between tokens.", unit="duration", targets=_MEASURED, gt=0, le=3600
    )


class PoolObjectives(Objectives):
    """Objectives of a pool: engines count gaps between tokens, and do not know routes."""

    between_tokens: TokenGapObjective = documented_field(
        TokenGapObjective,
        "Time between tokens of all requests, from the engine histograms that agents report. Between the engine's "
        "buckets it is interpolated: choose one of their bounds, such as 50ms, 75ms, 100ms or 150ms of vLLM.",
    )

    def all(self) -> Iterator[Objective]:
        """Every objective that is set."""
        yield from Objectives.all(self)
        yield from _latencies(ObjectiveKind.BETWEEN_TOKENS, self.between_tokens)


def _latencies(kind: ObjectiveKind, limits: LatencyObjective | TokenGapObjective) -> Iterator[Objective]:
    for share, target in _SHARES:
        limit_s = getattr(limits, share)
        if limit_s is not None:
            yield Objective(name=f"{kind.value}-{share}", kind=kind, target=target, limit_s=limit_s)
