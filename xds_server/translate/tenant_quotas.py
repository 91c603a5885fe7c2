"""Quotas of tenants as Envoy's local rate limit: one token bucket for each tenant, in the port's routes.

The filter in the listener is empty and never changes; the buckets are in the virtual host, so that an edit, and a
change of the number of proxies, cut no stream. It stands after the filters that verify callers and before the body
is read. A change of the port's routes fills all buckets again, so they hold little: see ``Quota.burst``.

Source: envoy/extensions/filters/http/local_ratelimit/v3/local_rate_limit.proto.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as HeaderMutationRule
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RuntimeFractionalPercent,
)
from envoy_data_plane.envoy.config.route.v3 import RateLimit, RateLimitAction, RateLimitActionRequestHeaders
from envoy_data_plane.envoy.extensions.common.ratelimit.v3 import (
    LocalRateLimitDescriptor,
    RateLimitDescriptorEntry,
    XRateLimitHeadersRfcVersion,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import HeaderMutation, Mutations
from envoy_data_plane.envoy.extensions.filters.http.local_ratelimit.v3 import LocalRateLimit
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType, TokenBucket
from envoy_data_plane.google.protobuf import Any

from policies.resilience.mode import Mode
from policies.tenants import Quota, Tenants
from xds_server.translate.envoy_values import pack_any, seconds

QUOTA_FILTER: Final = "envoy.filters.http.local_ratelimit"

QUOTA_FLAG: Final = "RL"
"""Envoy's response flag of requests above a quota."""

OVER_QUOTA_HEADER: Final = "x-switchgear-over-quota"
"""On requests that are served above their quota, in shadow mode."""

QUOTA_REASON: Final = "quota-exceeded"

_RESET: Final = (
    f"%CEL('x-switchgear-reason' in response.headers && response.headers['x-switchgear-reason'] == "
    f"'{QUOTA_REASON}' && 'x-ratelimit-reset' in response.headers ? response.headers['x-ratelimit-reset'] : '')%"
)
_RETRY_AFTER: Final = HeaderMutation(
    mutations=Mutations(
        response_mutations=[
            HeaderMutationRule(
                append=HeaderValueOption(
                    header=HeaderValue(key="retry-after", value=_RESET),
                    append_action=HeaderValueOptionHeaderAppendAction.ADD_IF_ABSENT,
                )
            )
        ]
    )
)
"""Without a value Envoy adds no header."""

_TENANT: Final = "tenant"
_MILLISECONDS: Final = 1000


def quota_filters(tenants: Tenants | None) -> Iterator[HttpFilter]:
    """The filters of a listener with tenants; its buckets are in the routes."""
    if tenants is not None:
        # Before the other, so that it sees the headers which that adds to a response.
        yield HttpFilter(name="envoy.filters.http.header_mutation", typed_config=pack_any(_RETRY_AFTER))
        yield HttpFilter(name=QUOTA_FILTER, typed_config=pack_any(LocalRateLimit(stat_prefix="tenants")))


def tenant_quotas(tenants: Tenants | None, proxies: int) -> dict[str, Any]:
    """Per-filter configuration of a virtual host: a proxy's part of each quota."""
    if tenants is None:
        return {}
    enforced = tenants.mode is Mode.ENFORCE
    quotas = LocalRateLimit(
        stat_prefix="tenants",
        # Without a descriptor of their own, requests take from this one.
        token_bucket=_bucket(tenants.others, proxies),
        always_consume_default_token_bucket=False,
        filter_enabled=_percent(100),
        filter_enforced=_percent(100 if enforced else 0),
        rate_limits=[
            RateLimit(
                actions=[
                    RateLimitAction(
                        request_headers=RateLimitActionRequestHeaders(
                            header_name=tenants.header, descriptor_key=_TENANT
                        )
                    )
                ]
            )
        ],
        descriptors=[
            LocalRateLimitDescriptor(
                entries=[RateLimitDescriptorEntry(key=_TENANT, value=one.name)],
                token_bucket=_bucket(one, proxies),
            )
            for one in tenants.named
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
    return {QUOTA_FILTER: pack_any(quotas)}


def _bucket(quota: Quota, proxies: int) -> TokenBucket:
    share_s = quota.per.seconds * proxies
    tokens = math.ceil(Fraction(quota.requests, share_s))
    # Envoy counts whole milliseconds: rounded up, all proxies together stay within the limit.
    interval_ms = math.ceil(Fraction(tokens * share_s * _MILLISECONDS, quota.requests))
    return TokenBucket(
        max_tokens=max(1, math.floor(quota.burst_requests / proxies)),
        tokens_per_fill=tokens,
        fill_interval=seconds(interval_ms / _MILLISECONDS),
    )


def _percent(percent: int) -> RuntimeFractionalPercent:
    return RuntimeFractionalPercent(
        default_value=FractionalPercent(numerator=percent, denominator=FractionalPercentDenominatorType.HUNDRED)
    )
