"""Token buckets of tenants in a simulated proxy, from the generated configuration of Envoy's local rate limit.

As in Envoy (1.36, 1.40) tokens flow in continuously, a request takes from every bucket that it matches, those that
fill most slowly first, and the first bucket without enough tokens refuses it; what it took before is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from envoy_data_plane.envoy.config.route.v3 import RateLimitAction
from envoy_data_plane.envoy.extensions.filters.http.local_ratelimit.v3 import LocalRateLimit
from envoy_data_plane.envoy.type.v3 import TokenBucket
from envoy_data_plane.google.protobuf import Any

from chaos.simulator.header_rules import Headers, header_matches

_Descriptor = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketConfig:
    """A bucket: the most tokens that it holds, and how many flow in per second."""

    most: int
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRule:
    """One source of descriptors; ``by_tokens``: a request takes as many as it is estimated to need, else one."""

    action: RateLimitAction
    by_tokens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig:
    """The buckets of a port; requests without a descriptor among ``buckets`` take from ``default``.

    ``headers`` are those that descriptors depend on.
    """

    rules: tuple[QuotaRule, ...]
    buckets: Mapping[_Descriptor, BucketConfig]
    default: BucketConfig
    enforced: bool
    headers: tuple[str, ...]


def quota_config(packed: Any) -> QuotaConfig:
    """The buckets of a virtual host's local rate limit."""
    limit = LocalRateLimit.parse(packed.value)
    enforced = limit.filter_enforced
    rules = tuple(
        QuotaRule(action=action, by_tokens=one.hits_addend is not None)
        for one in limit.rate_limits
        for action in one.actions
    )
    return QuotaConfig(
        rules=rules,
        buckets=MappingProxyType(
            {(one.entries[0].key, one.entries[0].value): _bucket(one.token_bucket) for one in limit.descriptors}
        ),
        default=_bucket(limit.token_bucket),
        enforced=bool(enforced and enforced.default_value and enforced.default_value.numerator),
        headers=tuple(sorted({name for one in rules for name in _header_names(one.action)})),
    )


def _bucket(bucket: TokenBucket | None) -> BucketConfig:
    if bucket is None or bucket.fill_interval is None:
        raise ValueError("a rate limit without a bucket is not simulated")
    # Envoy fills one token at a time by default.
    per_fill = bucket.tokens_per_fill or 1
    return BucketConfig(most=bucket.max_tokens, per_s=per_fill / bucket.fill_interval.total_seconds())


def _header_names(action: RateLimitAction) -> list[str]:
    if action.request_headers is not None:
        return [action.request_headers.header_name]
    return [] if action.header_value_match is None else [one.name for one in action.header_value_match.headers]


def _descriptor(action: RateLimitAction, headers: Headers) -> _Descriptor | None:
    if action.request_headers is not None:
        value = headers.get(action.request_headers.header_name)
        return None if value is None else (action.request_headers.descriptor_key, value)
    if action.generic_key is not None:
        return action.generic_key.descriptor_key, action.generic_key.descriptor_value
    if action.header_value_match is None:
        raise ValueError("a rate limit by other than headers is not simulated")
    match = action.header_value_match
    met = all(header_matches(one, headers) for one in match.headers)
    expected = match.expect_match is not False
    return (match.descriptor_key, match.descriptor_value) if met is expected else None


class _Bucket:
    __slots__ = ("at_s", "config", "tokens")

    def __init__(self, config: BucketConfig, now_s: float) -> None:
        self.config = config
        self.tokens = float(config.most)
        self.at_s = now_s

    def take(self, count: int, now_s: float) -> bool:
        self.tokens = min(self.config.most, self.tokens + (now_s - self.at_s) * self.config.per_s)
        self.at_s = now_s
        if self.tokens < count:
            return False
        self.tokens -= count
        return True


class QuotaBuckets:
    """The buckets of one proxy, full at first."""

    def __init__(self, config: QuotaConfig, now_s: float) -> None:
        self.config = config
        self._default = _Bucket(config.default, now_s)
        self._buckets = {name: _Bucket(one, now_s) for name, one in config.buckets.items()}
        self._matched: dict[tuple[str | None, ...], list[tuple[_Bucket, bool]]] = {}

    def admits(self, headers: Headers, tokens: float, now_s: float) -> bool:
        """Take from the buckets of this request; False if one of them refuses it."""
        caller = tuple([headers.get(name) for name in self.config.headers])
        matched = self._matched.get(caller)
        if matched is None:
            matched = self._of(headers)
            if all(value is None or any(value == name for _, name in self._buckets) for value in caller):
                # Names that callers make up are not kept.
                self._matched[caller] = matched
        for bucket, by_tokens in matched:
            # The generated estimate is a number from one to the size of the bucket.
            count = min(bucket.config.most, max(1, int(tokens))) if by_tokens else 1
            if not bucket.take(count, now_s):
                return not self.config.enforced
        return True

    def _of(self, headers: Headers) -> list[tuple[_Bucket, bool]]:
        found = []
        for rule in self.config.rules:
            name = _descriptor(rule.action, headers)
            if name is not None and (bucket := self._buckets.get(name)) is not None:
                found.append((bucket, rule.by_tokens))
        return sorted(found, key=lambda one: one[0].config.per_s) or [(self._default, False)]
