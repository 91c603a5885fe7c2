"""Quotas of tenants as Envoy's local rate limit: token buckets for each tenant, in the port's routes.

The filter in the listener is empty and never changes; the buckets are in the virtual host, so that an edit cuts no
stream. It stands after the filters that verify callers and before the body is read, unless tokens are counted. A
change of the port's routes fills all buckets again, so they hold little: see ``Quota.burst``.

The buckets are for the whole quota. What a request takes from them depends on the proxy's part, which a filter
before this one knows: see ``tenant_parts``. A quota of tokens is a second bucket, from which a request takes as
many as it is estimated to need. What is not a number passes without a limit, zero and more than the bucket holds
never pass (observed with Envoy 1.36 and 1.40), so the filter yields a number from one to the bucket's size.

A used up quota of a calendar period is a bucket from which each request of the tenant asks for more than it holds,
until the period ends by Envoy's own clock: a lost control plane refuses no longer than that.

Source: envoy/extensions/filters/http/local_ratelimit/v3/local_rate_limit.proto.
"""

import math
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as HeaderMutationRule
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RuntimeFractionalPercent,
)
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    RateLimit,
    RateLimitAction,
    RateLimitActionGenericKey,
    RateLimitActionHeaderValueMatch,
    RateLimitActionMetaData,
    RateLimitActionMetaDataSource,
    RateLimitActionRequestHeaders,
    RateLimitHitsAddend,
)
from envoy_data_plane.envoy.extensions.common.ratelimit.v3 import (
    LocalRateLimitDescriptor,
    RateLimitDescriptorEntry,
    XRateLimitHeadersRfcVersion,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import (
    HeaderMutation,
    HeaderMutationPerRoute,
    Mutations,
)
from envoy_data_plane.envoy.extensions.filters.http.local_ratelimit.v3 import LocalRateLimit
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType, TokenBucket
from envoy_data_plane.google.protobuf import Any

from policies.listener import Listener
from policies.resilience.mode import Mode
from policies.tenants import OTHERS, Quota, Tenants
from xds_server.decide.decisions import UsedUpQuota
from xds_server.translate.envoy_values import pack_any, seconds
from xds_server.translate.quota_buckets import request_buckets, token_buckets
from xds_server.translate.tenant_parts import (
    BUCKET_KEY,
    COST_KEY,
    PART_METADATA,
    TOKENS_BUCKET_KEY,
    TOKENS_COST_KEY,
    bucket_name,
    parts_filter,
)

QUOTA_FILTER: Final = "envoy.filters.http.local_ratelimit"

QUOTA_FLAG: Final = "RL"
"""Envoy's response flag of requests above a quota."""

OVER_QUOTA_HEADER: Final = "x-switchgear-over-quota"
"""On requests that are served above their quota, in shadow mode."""

QUOTA_REASON: Final = "quota-exceeded"

_RESET: Final = "response.headers['x-ratelimit-reset']"
_TOKENS_RESET: Final = f"({_RESET} == '0' ? '1' : {_RESET})"
"""A bucket of tokens has its next one within the second, which is too soon to come again."""

_IS_REFUSED: Final = (
    f"'x-switchgear-reason' in response.headers && response.headers['x-switchgear-reason'] == '{QUOTA_REASON}'"
)
_NOW: Final = "int(request.time)"

_TENANT: Final = "tenant"
_TOKENS: Final = "tokens"
_MILLISECONDS: Final = 1000
_LARGEST: Final = 2**32 - 1
_UNLIMITED: Final = TokenBucket(max_tokens=_LARGEST, tokens_per_fill=_LARGEST, fill_interval=seconds(1))
"""Admits everything; without a bucket of its own, a tenant would take from the default one."""

NO_QUOTA_USED_UP: Final[Mapping[str, UsedUpQuota]] = MappingProxyType({})

_USED_UP: Final = "used-up"
_USED_UP_BUCKET: Final = 1_000_000
"""Tokens of the bucket that refuses; it fills at once, so that it limits nothing after the period."""

_HEADER_FILTER: Final = "envoy.filters.http.header_mutation"


def quota_filters(port: int, tenants: Tenants | None) -> Iterator[HttpFilter]:
    """The filters of a listener with tenants; its buckets are in the routes."""
    if tenants is not None and tenants.has_quotas:
        # Before the other, so that it sees the headers which that adds to a response.
        retry_after = _retry_after(_TOKENS_RESET if tenants.counts_tokens else _RESET)
        yield HttpFilter(name=_HEADER_FILTER, typed_config=pack_any(retry_after))
        yield parts_filter(port)
        yield HttpFilter(name=QUOTA_FILTER, typed_config=pack_any(LocalRateLimit(stat_prefix="tenants")))


def tenant_quotas(
    listener: Listener, proxies: int, used_up: Mapping[str, UsedUpQuota] = NO_QUOTA_USED_UP
) -> dict[str, Any]:
    """Per-filter configuration of a virtual host: buckets of each quota for this number of proxies, and refusal of
    tenants that used up a quota of a calendar period.
    """
    tenants = listener.tenants
    if tenants is None or not tenants.has_quotas:
        return {}
    enforced = tenants.mode is Mode.ENFORCE
    counts = any(one.tokens is not None for one in tenants.quotas().values())
    quotas = LocalRateLimit(
        stat_prefix="tenants",
        # For requests without metadata: none, while Envoy has the parts.
        token_bucket=_whole(tenants.others),
        always_consume_default_token_bucket=False,
        filter_enabled=_percent(100),
        filter_enforced=_percent(100 if enforced else 0),
        rate_limits=[
            _of_metadata(_TENANT, BUCKET_KEY, COST_KEY),
            *([_of_metadata(_TOKENS, TOKENS_BUCKET_KEY, TOKENS_COST_KEY)] if counts else ()),
            *_used_up_limits(tenants, used_up),
        ],
        descriptors=[*_descriptors(tenants, proxies)]
        + [
            LocalRateLimitDescriptor(
                entries=[RateLimitDescriptorEntry(key=_used_up_key(one.until_unix_s), value=name)],
                token_bucket=TokenBucket(
                    max_tokens=_USED_UP_BUCKET, tokens_per_fill=_USED_UP_BUCKET, fill_interval=seconds(1)
                ),
            )
            for name, one in used_up.items()
        ],
        request_headers_to_add_when_not_enforced=[
            HeaderValueOption(
                header=HeaderValue(key=OVER_QUOTA_HEADER, value="true"),
                append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
            )
        ],
    )
    if enforced:
        # A shadow must not slow down callers that read them.
        quotas.enable_x_ratelimit_headers = XRateLimitHeadersRfcVersion.DRAFT_VERSION_03
    found = {QUOTA_FILTER: pack_any(quotas)}
    if used_up and enforced:
        found[_HEADER_FILTER] = pack_any(_used_up_headers(tenants, used_up))
    return found


def _used_up_key(until_unix_s: int) -> str:
    return f"{_USED_UP}-until-{until_unix_s}"


def _used_up_limits(tenants: Tenants, used_up: Mapping[str, UsedUpQuota]) -> Iterator[RateLimit]:
    """A limit for each end of a period, not for each tenant; one more for all callers that are not named."""
    named = {one.until_unix_s for name, one in used_up.items() if name != OTHERS}
    for until_unix_s in sorted(named):
        action = RateLimitActionRequestHeaders(
            header_name=tenants.header, descriptor_key=_used_up_key(until_unix_s)
        )
        yield RateLimit(
            actions=[RateLimitAction(request_headers=action)], hits_addend=_too_many_until(until_unix_s)
        )
    if OTHERS in used_up:
        until_unix_s = used_up[OTHERS].until_unix_s
        yield RateLimit(
            actions=[_is_other(tenants, _used_up_key(until_unix_s))], hits_addend=_too_many_until(until_unix_s)
        )


def _too_many_until(until_unix_s: int) -> RateLimitHitsAddend:
    hits = f"{_NOW} < {until_unix_s} ? {_USED_UP_BUCKET + 1} : 1"
    return RateLimitHitsAddend(format=f"%CEL({hits})%")


def _used_up_headers(tenants: Tenants, used_up: Mapping[str, UsedUpQuota]) -> HeaderMutationPerRoute:
    """Headers of refusals of these tenants: when the period ends, and what its limit is."""
    caller = f"request.headers['{tenants.header}']"
    named = {name: one for name, one in used_up.items() if name != OTHERS}
    conditions = [
        (f"'{tenants.header}' in request.headers && {caller} in {_cel_map(named)}", f"{{}}[{caller}]", named)
    ]
    if OTHERS in used_up:
        every = ", ".join(f"'{one.name}'" for one in tenants.named)
        other = f"!('{tenants.header}' in request.headers && {caller} in [{every}])"
        conditions.append((other, f"{{}}['{OTHERS}']", {OTHERS: used_up[OTHERS]}))
    mutations = []
    for condition, of, some in conditions:
        if not some:
            continue
        limit = of.format(_cel_map({name: one.limit for name, one in some.items()}))
        until = of.format(_cel_map({name: one.until_unix_s for name, one in some.items()}))
        values = {
            "retry-after": f"{until} - {_NOW}",
            "x-ratelimit-reset": f"{until} - {_NOW}",
            "x-ratelimit-remaining": "0",
            "x-ratelimit-limit": limit,
        }
        mutations += [
            HeaderMutationRule(
                append=HeaderValueOption(
                    header=HeaderValue(
                        key=name,
                        value=f"%CEL({_IS_REFUSED} && {condition} && {_NOW} < {until} ? {value} : '')%",
                    ),
                    append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
                )
            )
            for name, value in values.items()
        ]
    return HeaderMutationPerRoute(mutations=Mutations(response_mutations=mutations))


def _cel_map(values: Mapping[str, object]) -> str:
    """A map literal; names have no characters that would need an escape."""
    pairs = (f"'{name}': {value if isinstance(value, int) else 0}" for name, value in values.items())
    return "{" + ", ".join(pairs) + "}"


def _retry_after(reset: str) -> HeaderMutation:
    """Adds ``retry-after`` to refusals by quota. Without a value Envoy adds no header."""
    value = f"%CEL({_IS_REFUSED} && 'x-ratelimit-reset' in response.headers ? {reset} : '')%"
    return HeaderMutation(
        mutations=Mutations(
            response_mutations=[
                HeaderMutationRule(
                    append=HeaderValueOption(
                        header=HeaderValue(key="retry-after", value=value),
                        append_action=HeaderValueOptionHeaderAppendAction.ADD_IF_ABSENT,
                    )
                )
            ]
        )
    )


def _of_metadata(key: str, bucket: str, cost: str) -> RateLimit:
    """A limit whose bucket, and what a request takes from it, the filter with the parts wrote."""
    path = [MetadataKeyPathSegment(key=bucket)]
    action = RateLimitActionMetaData(
        descriptor_key=key,
        metadata_key=MetadataKey(key=PART_METADATA, path=path),
        source=RateLimitActionMetaDataSource.DYNAMIC,
        skip_if_absent=True,
    )
    return RateLimit(
        actions=[RateLimitAction(metadata=action)],
        hits_addend=RateLimitHitsAddend(format=f"%DYNAMIC_METADATA({PART_METADATA}:{cost})%"),
    )


def _descriptors(tenants: Tenants, proxies: int) -> Iterator[LocalRateLimitDescriptor]:
    """The buckets of all tenants, for the whole quota of each."""
    for name, quota in tenants.quotas().items():
        requests = request_buckets(quota, proxies)
        buckets = [_UNLIMITED] if requests is None else requests.envoy_buckets()
        for place, bucket in enumerate(buckets):
            yield _descriptor(_TENANT, bucket_name(name, place), bucket)
        tokens = token_buckets(quota, () if requests is None else requests.sizes)
        for bucket in () if tokens is None else tokens.envoy_buckets():
            yield _descriptor(_TOKENS, name, bucket)


def _descriptor(key: str, value: str, bucket: TokenBucket) -> LocalRateLimitDescriptor:
    return LocalRateLimitDescriptor(entries=[RateLimitDescriptorEntry(key=key, value=value)], token_bucket=bucket)


def _is_other(tenants: Tenants, key: str) -> RateLimitAction:
    """The descriptor of all callers that are not named."""
    names = "|".join(re.escape(one.name) for one in tenants.named)
    if not names:
        return RateLimitAction(generic_key=RateLimitActionGenericKey(descriptor_key=key, descriptor_value=OTHERS))
    return RateLimitAction(
        header_value_match=RateLimitActionHeaderValueMatch(
            descriptor_key=key,
            descriptor_value=OTHERS,
            expect_match=False,
            headers=[
                HeaderMatcher(
                    name=tenants.header, string_match=StringMatcher(safe_regex=RegexMatcher(regex=names))
                )
            ],
        )
    )


def _whole(quota: Quota) -> TokenBucket:
    """A bucket of the whole quota; a request takes one."""
    if quota.requests is None:
        return _UNLIMITED
    per_fill = math.ceil(Fraction(quota.requests, quota.per.seconds))
    return TokenBucket(
        max_tokens=max(1, math.floor(quota.burst_requests)),
        tokens_per_fill=per_fill,
        fill_interval=seconds(
            math.ceil(Fraction(per_fill * quota.per.seconds * _MILLISECONDS, quota.requests)) / _MILLISECONDS
        ),
    )


def _percent(percent: int) -> RuntimeFractionalPercent:
    return RuntimeFractionalPercent(
        default_value=FractionalPercent(numerator=percent, denominator=FractionalPercentDenominatorType.HUNDRED)
    )
