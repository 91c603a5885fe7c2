"""Refusals of tenants above their fair share, as Envoy's fault filter: percentages in the runtime layer.

Which part of a tenant's requests is refused moves by the second, so it must be neither in the routes, whose
every change fills the buckets of quotas, nor in the listener. The fault filter looks up one runtime key for each
request, named after the caller's cluster; without the key it refuses nothing. So a route writes pool, port and
tenant into the header that names the cluster, which callers cannot send. The cost does not depend on the number
of tenants.

Callers without a known name have another fault filter, because their names are not known: it applies to all
that do not match the named ones. The name of its key is in the routes, for it depends on the pool.

Source: envoy/extensions/filters/http/fault/v3/fault.proto; "Fault Injection", runtime. Measurements and
alternatives: docs/adr/0047-fair-shares.md.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as HeaderMutationRule
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.filters.http.fault.v3 import FaultAbort, HttpFault
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import (
    HeaderMutation,
    HeaderMutationPerRoute,
    Mutations,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType
from envoy_data_plane.google.protobuf import Any

from policies.route import ModelRoute
from policies.tenants import OTHERS, Tenants
from xds_server.translate.envoy_values import pack_any

SHARE_FLAG: Final = "FI"
"""Envoy's response flag of requests that the fault filter refused."""

SHARE_REASON: Final = "above-fair-share"
SHARE_STATUS: Final = 429
SHARE_RETRY_AFTER_S: Final = 1
"""Demand changes by the second."""

_KEY_HEADER: Final = "x-envoy-downstream-service-cluster"
_KEY_FILTER: Final = "switchgear.tenant_key"
_NAMED_FILTER: Final = "switchgear.fair_share"
_OTHERS_FILTER: Final = "switchgear.fair_share_of_others"


def share_filters(tenants: Tenants | None) -> Iterator[HttpFilter]:
    """The filters of a listener whose tenants have fair shares; they refuse nothing without a runtime key."""
    if tenants is None or not tenants.fair_shares:
        return
    # Before the header with the key is written: with it, Envoy ignores the key that is configured. The names of
    # tenants are in the routes, for an edit of the listener ends streams.
    yield HttpFilter(name=_OTHERS_FILTER, typed_config=pack_any(_refusal()))
    yield HttpFilter(name=_KEY_FILTER, typed_config=pack_any(HeaderMutation()))
    yield HttpFilter(name=_NAMED_FILTER, typed_config=pack_any(_refusal()))


def tenant_key(route: ModelRoute) -> Mapping[str, Any]:
    """Per-filter configuration of a route that names the pool of its requests, and whose they are."""
    listener = route.spec.listener
    tenants = listener.tenants
    if tenants is None or not tenants.fair_shares:
        return {}
    pool = route.spec.pools[0].pool
    written = HeaderValueOption(
        header=HeaderValue(key=_KEY_HEADER, value=f"{_place(pool, listener.port)}/%REQ({tenants.header})%"),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )
    mutations = Mutations(request_mutations=[HeaderMutationRule(append=written)])
    return {
        _KEY_FILTER: pack_any(HeaderMutationPerRoute(mutations=mutations)),
        _OTHERS_FILTER: pack_any(_of_others(tenants, share_key(pool, listener.port, OTHERS))),
    }


def tenant_key_headers(route: ModelRoute) -> Sequence[str]:
    """Request headers that engines must not get."""
    return (_KEY_HEADER,) if tenant_key(route) else ()


def share_key(pool: str, port: int, tenant: str) -> str:
    """Runtime key of the percentage of a tenant's requests to a pool that is refused."""
    place = _place(pool, port)
    if tenant == OTHERS:
        return f"switchgear.fair_share.{place}.{OTHERS}"
    return f"fault.http.{place}/{tenant}.abort.abort_percent"


def _place(pool: str, port: int) -> str:
    return f"{pool}/{port}"


def _refusal() -> HttpFault:
    return HttpFault(
        abort=FaultAbort(http_status=SHARE_STATUS, percentage=_none()),
        # Not Envoy's default key, which operators may have set for a fault filter of their own.
        abort_percent_runtime="switchgear.fair_share.all",
        disable_downstream_cluster_stats=True,
    )


def _of_others(tenants: Tenants, key: str) -> HttpFault:
    refusal = _refusal()
    names = "|".join(re.escape(one.name) for one in tenants.named)
    if names:
        refusal.headers = [
            HeaderMatcher(
                name=tenants.header,
                string_match=StringMatcher(safe_regex=RegexMatcher(regex=names)),
                invert_match=True,
                treat_missing_header_as_empty=True,
            )
        ]
    refusal.abort_percent_runtime = key
    return refusal


def _none() -> FractionalPercent:
    return FractionalPercent(numerator=0, denominator=FractionalPercentDenominatorType.MILLION)
