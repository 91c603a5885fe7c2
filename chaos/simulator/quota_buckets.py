"""Token buckets of tenants in a simulated proxy, from the generated configuration of Envoy's local rate limit.

As in Envoy (1.36, 1.40) tokens flow in continuously, a request takes from every bucket that it matches, those that
fill most slowly first, and the first bucket without enough tokens refuses it; what it took before is gone. Bucket
and cost of a request are in its metadata, which the filter with the parts of quotas writes.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.config.route.v3 import RateLimit
from envoy_data_plane.envoy.extensions.filters.http.local_ratelimit.v3 import LocalRateLimit
from envoy_data_plane.envoy.type.v3 import TokenBucket
from envoy_data_plane.google.protobuf import Any

from chaos.simulator.header_rules import Headers
from policies.tenants import OTHERS
from xds_server.translate.tenant_parts import (
    BUCKET_KEY,
    COST_KEY,
    PART_METADATA,
    TOKENS_BUCKET_KEY,
    TOKENS_COST_KEY,
    TenantCost,
)

_Descriptor = tuple[str, str]
_HITS: Final = re.compile(rf"%DYNAMIC_METADATA\({re.escape(PART_METADATA)}:([^:)]+)\)%")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketConfig:
    """A bucket: the most tokens that it holds, and how many flow in per second."""

    most: int
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRule:
    """One source of descriptors: keys of the metadata with the bucket, and with what a request takes from it."""

    descriptor: str
    bucket: str
    cost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig:
    """The buckets of a port; requests without a descriptor among ``buckets`` take from ``default``."""

    rules: tuple[QuotaRule, ...]
    buckets: Mapping[_Descriptor, BucketConfig]
    default: BucketConfig
    enforced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaParts:
    """The discovered filter of one proxy: what a request of each tenant takes there."""

    header: str
    costs: Mapping[str, TenantCost]

    def metadata(self, headers: Headers, tokens: float) -> Mapping[str, str | float]:
        """What the filter writes for a request with these headers and this estimate."""
        name = headers.get(self.header, "")
        if name not in self.costs:
            name = OTHERS
        one = self.costs[name]
        found: dict[str, str | float] = {BUCKET_KEY: one.bucket, COST_KEY: one.cost}
        if one.token_cost is not None and one.most_tokens is not None:
            cost = math.ceil(max(1.0, tokens) * one.token_cost)
            found |= {TOKENS_BUCKET_KEY: name, TOKENS_COST_KEY: max(1, min(cost, one.most_tokens))}
        return found


def quota_config(packed: Any) -> QuotaConfig:
    """The buckets of a virtual host's local rate limit."""
    limit = LocalRateLimit.parse(packed.value)
    enforced = limit.filter_enforced
    return QuotaConfig(
        rules=tuple(map(_rule, limit.rate_limits)),
        buckets=MappingProxyType(
            {(one.entries[0].key, one.entries[0].value): _bucket(one.token_bucket) for one in limit.descriptors}
        ),
        default=_bucket(limit.token_bucket),
        enforced=bool(enforced and enforced.default_value and enforced.default_value.numerator),
    )


def _rule(limit: RateLimit) -> QuotaRule:
    (action,) = limit.actions
    hits = None if limit.hits_addend is None else _HITS.fullmatch(limit.hits_addend.format)
    metadata = action.metadata
    if (
        metadata is None
        or metadata.metadata_key is None
        or metadata.metadata_key.key != PART_METADATA
        or hits is None
    ):
        raise ValueError("a rate limit by other than parts of quotas is not simulated")
    (segment,) = metadata.metadata_key.path
    return QuotaRule(descriptor=metadata.descriptor_key, bucket=segment.key or "", cost=hits[1])


def _bucket(bucket: TokenBucket | None) -> BucketConfig:
    if bucket is None or bucket.fill_interval is None:
        raise ValueError("a rate limit without a bucket is not simulated")
    # Envoy fills one token at a time by default.
    per_fill = bucket.tokens_per_fill or 1
    return BucketConfig(most=bucket.max_tokens, per_s=per_fill / bucket.fill_interval.total_seconds())


class _Bucket:
    __slots__ = ("at_s", "config", "tokens")

    def __init__(self, config: BucketConfig, now_s: float) -> None:
        self.config = config
        self.tokens = float(config.most)
        self.at_s = now_s

    def take(self, count: float, now_s: float) -> bool:
        self.tokens = min(self.config.most, self.tokens + (now_s - self.at_s) * self.config.per_s)
        self.at_s = now_s
        if self.tokens < count:
            return False
        self.tokens -= count
        return True


class SimulatedQuotaBuckets:
    """The buckets of one proxy, full at first."""

    def __init__(self, config: QuotaConfig, now_s: float) -> None:
        self.config = config
        self._default = _Bucket(config.default, now_s)
        self._buckets = {name: _Bucket(one, now_s) for name, one in config.buckets.items()}

    def admits(self, metadata: Mapping[str, str | float], now_s: float) -> bool:
        """Take from the buckets of a request with this metadata; False if one of them refuses it."""
        found = []
        for rule in self.config.rules:
            bucket = self._buckets.get((rule.descriptor, str(metadata.get(rule.bucket))))
            if bucket is not None:
                found.append((bucket, float(metadata[rule.cost])))
        found.sort(key=lambda one: one[0].config.per_s)
        for bucket, cost in found or [(self._default, 1.0)]:
            if not bucket.take(cost, now_s):
                return not self.config.enforced
        return True
