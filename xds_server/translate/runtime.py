"""Runtime layer: all numbers that follow the fleet and that Envoy reads live.

A push takes effect in milliseconds without affecting requests in flight. Envoy silently ignores invalid values
and uses its configuration instead, so every value is validated here.

Interactive requests use Envoy's HIGH priority and batch requests DEFAULT, each with its own admission limit.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.service.runtime.v3 import Runtime
from envoy_data_plane.google.protobuf import Struct, Value

from policies.resilience import Hedging
from xds_server.decide.decisions import Ceiling, HedgeDecision
from xds_server.translate.deadlines import REFUSED_PERCENT

LAYER: Final = "switchgear"
"""Name of the runtime resource, and of the layer in the bootstrap."""

ACCESS_LOG_KEY: Final = f"{LAYER}.access_log.percent"
"""Sampling ratio of access logs; default: all."""

EVERYTHING_PERCENT: Final = 100.0

_NOTHING_REFUSED: Final[Mapping[str, float]] = MappingProxyType({})

KEPT_NUMBERS: Final = 512
"""Numbers of layers that are kept, at 300 bytes each. Admission limits take thousands of values in hours, so a
larger cache fills for hours, which looks like a leak. A number that is made again costs 6 us.
"""

_LARGEST: Final = 2**32 - 1
_MILLION: Final = 1_000_000


def runtime_layer(
    ceilings: Mapping[str, Ceiling],
    route_weights: Mapping[str, Mapping[str, int]],
    access_log_percent: float = EVERYTHING_PERCENT,
    deadline_keys: Iterable[str] = (),
    refused_shares: Mapping[str, float] = _NOTHING_REFUSED,
) -> Runtime:
    """Layer with admission limits by pool, and weights by route and pool; keys in a fixed order.

    ``access_log_percent`` below 100 samples access logs. ``deadline_keys``: steps of deadlines in force.
    ``refused_shares``: percent of a tenant's requests that are refused, or of large requests that are not retried,
    by key. Raises ``ValueError`` for a number
    that Envoy would silently ignore.
    """
    values: dict[str, float] = {}
    for pool in sorted(ceilings):
        values.update(_breakers(pool, ceilings[pool]))
    for route in sorted(route_weights):
        prefix = weights_prefix(route)
        for pool, weight in sorted(route_weights[route].items()):
            values[f"{prefix}.{pool}"] = _count(weight, f"weight of {pool} in {route}")
    values.update(dict.fromkeys(sorted(deadline_keys), REFUSED_PERCENT))
    fields = {key: _number(value) for key, value in values.items()}
    fields |= {key: _share(percent, f"requests of {key}") for key, percent in sorted(refused_shares.items())}
    if access_log_percent != EVERYTHING_PERCENT:
        fields[ACCESS_LOG_KEY] = _share(access_log_percent, "access logs")
    return Runtime(name=LAYER, layer=Struct(fields=fields))


MIN_HEDGES: Final = 1
"""Hedges and retries in flight that a proxy always allows while hedging is on."""


def with_hedge_budget(ceiling: Ceiling, hedging: Hedging, hedge: HedgeDecision | None = None) -> Ceiling:
    """Admission limit with a retry budget that also limits hedges.

    Envoy has one budget for retries and hedges of a cluster, so with hedges the smaller percentage applies, and at
    least one of them: ``min_retry_concurrency`` allows that many whatever the percentage is of.
    ``hedge``: the decision; without it the policy decides.
    """
    hedged = hedging.enabled and hedging.delay is not None if hedge is None else hedge.on
    if not hedged:
        return ceiling
    return replace(
        ceiling,
        retry_percent=min(hedging.max_percent, ceiling.retry_percent),
        retry_min_concurrency=min(ceiling.retry_min_concurrency, MIN_HEDGES),
    )


def weights_prefix(route: str) -> str:
    """Runtime prefix of a route's weights, followed by a dot and the cluster name."""
    return f"{LAYER}.route.{route}"


def _breakers(pool: str, ceiling: Ceiling) -> Iterable[tuple[str, float]]:
    percent = ceiling.retry_percent
    if not math.isfinite(percent) or not 0 <= percent <= 100:
        raise ValueError(f"retry budget of {pool} is {percent} %")
    for priority, requests in (("default", ceiling.batch), ("high", ceiling.interactive)):
        prefix = f"circuit_breakers.{pool}.{priority}"
        yield f"{prefix}.max_requests", _count(requests, f"ceiling of {pool}")
        yield f"{prefix}.retry_budget.budget_percent", percent
        yield (
            f"{prefix}.retry_budget.min_retry_concurrency",
            _count(ceiling.retry_min_concurrency, f"retries of {pool}"),
        )


@lru_cache(maxsize=KEPT_NUMBERS)
def _number(value: float) -> Value:
    # The layers of a thousand proxies have few distinct numbers; creating a value costs microseconds.
    return Value(number_value=value)


def _share(percent: float, of: str) -> Value:
    """A percentage in Envoy's fractional form: plain numbers accept whole percents only."""
    if not math.isfinite(percent) or not 0 <= percent <= EVERYTHING_PERCENT:
        raise ValueError(f"share of {of} is {percent} %")
    parts = round(percent / EVERYTHING_PERCENT * _MILLION)
    return Value(
        struct_value=Struct(fields={"numerator": _number(parts), "denominator": Value(string_value="MILLION")})
    )


def _count(value: int, what: str) -> float:
    if not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{what} is {value!r}, not a whole number that Envoy accepts")
    return float(value)
