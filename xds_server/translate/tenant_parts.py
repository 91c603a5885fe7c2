"""A proxy's parts of the quotas of tenants, as a Lua filter that Envoy discovers (ECDS).

Parts move every few seconds. Neither the listener, whose change ends streams, nor the routes, whose change fills
all buckets, can carry them; a discovered filter is replaced alone. It names the bucket of a request and what the
request takes from it, in metadata that the rate limit reads, and divides by the same in the headers of answers.

Source: envoy/config/core/v3/extension.proto; "Extension discovery service".
docs/adr/0053-quotas-divided-by-use.md.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import DataSource, ExtensionConfigSource, TypedExtensionConfig
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter

from policies.listener import Listener
from policies.model import PolicySet
from policies.resilience.mode import Mode
from policies.route import MAX_TOKENS_HEADER, ModelRoute
from policies.tenants import OTHERS, Quota, Tenants
from xds_server.decide.decisions import Decisions, PortParts
from xds_server.model.memo import Memo
from xds_server.model.type_urls import EXTENSION
from xds_server.translate.envoy_values import ads_config_source, pack_any
from xds_server.translate.quota_buckets import LARGEST_BUCKET, request_buckets, token_buckets
from xds_server.translate.request_fields import ESTIMATED_TOKENS_KEY, MOST_TOKENS, REQUEST_METADATA
from xds_server.translate.translated_resource import TranslatedResource, TypeGroup

PART_METADATA: Final = "switchgear.quota"
BUCKET_KEY: Final = "bucket"
COST_KEY: Final = "cost"
TOKENS_BUCKET_KEY: Final = "tokens_bucket"
TOKENS_COST_KEY: Final = "tokens_cost"
"""Dynamic metadata of a request: the bucket of its tenant, and what it takes from it; the same for tokens."""

_LUA_TYPE: Final = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"
_NOTHING: Final = "function envoy_on_request(handle) end\n"
_NO_PARTS: Final[Mapping[str, float]] = MappingProxyType({})

_ON_REQUEST: Final = """\
function envoy_on_request(handle)
  local name = handle:headers():get("$header") or ""
  local part = PARTS[name]
  if not part then name, part = "$others", PARTS["$others"] end
  local metadata = handle:streamInfo():dynamicMetadata()
  metadata:set("$namespace", "tenant", name)
  metadata:set("$namespace", "$bucket", part.bucket)
  metadata:set("$namespace", "$cost", part.cost)
$tokens\
end
"""

_TOKENS: Final = """\
  if part.token_cost then
    local cost = math.ceil(tokens(handle) * part.token_cost)
    metadata:set("$namespace", "$tokens_bucket", name)
    metadata:set("$namespace", "$tokens_cost", math.max(1, math.min(cost, part.most_tokens)))
  end
"""

_BODY_TOKENS: Final = """\
-- Estimated from the body; a request without one takes one token.
local function tokens(handle)
  local read = handle:streamInfo():dynamicMetadata():get("$read")
  return read and read["$key"] or 1
end
"""

_HEADER_TOKENS: Final = """\
-- Estimated from headers. The size of a body without content-length is not known, so the method tells that
-- there is none; routes refuse any limit but a number.
local function tokens(handle)
  local headers = handle:headers()
  if headers:get(":method") == "GET" then return 1 end
  local stated = headers:get("$limit_header") or ""
  local answer = stated ~= "" and tonumber(stated) or $answer_tokens
  local prompt = math.floor((tonumber(headers:get("content-length")) or 0) / $bytes_per_token)
  return math.max(1, math.min(prompt + answer, $most))
end
"""

_ON_RESPONSE: Final = """\

-- Envoy's headers count what its buckets hold: divide by what a request takes.
function envoy_on_response(handle)
  local headers = handle:headers()
  local limit = tonumber(headers:get("x-ratelimit-limit"))
  local known = limit and handle:streamInfo():dynamicMetadata():get("$namespace")
  local part = known and PARTS[known.tenant]
  if not part then return end
  local cost, per_s = part.cost, part.per_s
  if limit == part.most_tokens then cost, per_s = part.token_cost, part.tokens_per_s end
  if not per_s then return end
  local left = tonumber(headers:get("x-ratelimit-remaining")) or 0
  headers:replace("x-ratelimit-limit", string.format("%.0f", math.floor(limit / cost)))
  headers:replace("x-ratelimit-remaining", string.format("%.0f", math.floor(left / cost)))
  -- Zero is added so that none is -0.
  local reset = math.max(0, math.ceil((cost - left) / per_s - 1e-6)) + 0
  headers:replace("x-ratelimit-reset", string.format("%.0f", reset))
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantCost:
    """What a request of one tenant takes at one proxy, in Envoy's tokens, and from which bucket.

    ``per_s`` flow in; None without a limit. ``token_cost`` is for one estimated token, ``most_tokens`` what its
    bucket holds; None without a limit of tokens.
    """

    bucket: str
    cost: int = 1
    per_s: float | None = None
    token_cost: float | None = None
    most_tokens: int | None = None
    tokens_per_s: float | None = None


def parts_name(port: int) -> str:
    """Name of the filter, and of the resource with its configuration."""
    return f"switchgear.tenant_parts.{port}"


def parts_filter(port: int) -> HttpFilter:
    """The filter in the listener of a port; while Envoy has no parts it does nothing."""
    nothing = Lua(default_source_code=DataSource(inline_string=_NOTHING))
    return HttpFilter(
        name=parts_name(port),
        config_discovery=ExtensionConfigSource(
            config_source=ads_config_source(), default_config=pack_any(nothing), type_urls=[_LUA_TYPE]
        ),
    )


def parts_resource(listener: Listener, parts: PortParts, node: str = "") -> TranslatedResource | None:
    """The parts of this proxy, or even ones; None without quotas."""
    tenants = listener.tenants
    if tenants is None or not tenants.has_quotas:
        return None
    script = "".join(_script(listener, tenants, tenant_costs(tenants, parts, node)))
    lua = Lua(default_source_code=DataSource(inline_string=script))
    name = parts_name(listener.port)
    return TranslatedResource(
        type_url=EXTENSION, name=name, message=TypedExtensionConfig(name=name, typed_config=pack_any(lua))
    )


def even_parts(route: ModelRoute, decisions: Decisions, memo: Memo) -> TypeGroup:
    """The resource of the route's port for proxies without parts of their own; none without quotas."""
    listener = route.spec.listener
    parts = PortParts(count=decisions.quota_proxies.get(listener.port, 1))
    return memo.of(
        ("even parts", listener.port), (listener, parts), lambda: _group(parts_resource(listener, parts))
    )


def proxy_parts(policies: PolicySet, decisions: Decisions, memo: Memo) -> Mapping[str, TypeGroup]:
    """By node id, the resources of proxies with parts of their own."""
    found: dict[str, TypeGroup] = {}
    listeners = {route.spec.listener.port: route.spec.listener for route in policies.routes.values()}
    for port, parts in decisions.quota_parts.items():
        for node in parts.proxies if parts.by_tenant else ():
            of = tuple(sorted((name, some[node]) for name, some in parts.by_tenant.items()))
            sizes = tuple(sorted((name, some[node]) for name, some in parts.sized_by.items()))
            made = memo.of(
                ("parts", port, node),
                (listeners[port], parts.count, of, sizes),
                partial(_own, listeners[port], parts, node),
            )
            found[node] = (*found.get(node, ()), *made)
    return found


def _own(listener: Listener, parts: PortParts, node: str) -> TypeGroup:
    return _group(parts_resource(listener, parts, node))


def _group(item: TranslatedResource | None) -> TypeGroup:
    return () if item is None else (item,)


def bucket_name(tenant: str, place: int) -> str:
    """Name of a tenant's bucket; tenants have no space in their names."""
    return f"{tenant} {place}" if place else tenant


def _script(listener: Listener, tenants: Tenants, costs: Mapping[str, TenantCost]) -> Iterator[str]:
    yield "local PARTS = {\n"
    for name, cost in costs.items():
        yield f'  ["{name}"] = {{{_lua_row(cost)}}},\n'
    yield "}\n"
    values = {
        "header": tenants.header,
        "others": OTHERS,
        "namespace": PART_METADATA,
        "bucket": BUCKET_KEY,
        "cost": COST_KEY,
        "tokens_bucket": TOKENS_BUCKET_KEY,
        "tokens_cost": TOKENS_COST_KEY,
        "limit_header": MAX_TOKENS_HEADER,
        "answer_tokens": str(tenants.answer_tokens),
        "bytes_per_token": str(tenants.bytes_per_token),
        "most": f"{MOST_TOKENS:.0f}",
        "read": REQUEST_METADATA,
        "key": ESTIMATED_TOKENS_KEY,
    }
    counts = any(quota.tokens is not None for quota in tenants.quotas().values())
    if counts:
        yield _filled(_HEADER_TOKENS if listener.reads_headers else _BODY_TOKENS, values)
    yield _filled(_ON_REQUEST, {**values, "tokens": _filled(_TOKENS, values) if counts else ""})
    if tenants.mode is Mode.ENFORCE:
        yield _filled(_ON_RESPONSE, values)


def _filled(text: str, values: Mapping[str, str]) -> str:
    # Longest first: $tokens_bucket begins like $tokens.
    for key in sorted(values, key=len, reverse=True):
        text = text.replace(f"${key}", values[key])
    return text


def tenant_costs(tenants: Tenants, parts: PortParts, node: str = "") -> Mapping[str, TenantCost]:
    """What requests take at a proxy, by tenant; without a name, at one with even parts."""
    found = {}
    for name, quota in tenants.quotas().items():
        part = parts.by_tenant.get(name, _NO_PARTS).get(node, parts.even)
        sized_by = parts.sized_by.get(name, _NO_PARTS).get(node, part)
        found[name] = _cost(name, quota, part, sized_by, parts.count)
    return MappingProxyType(found)


def _cost(name: str, quota: Quota, part: float, sized_by: float, count: int) -> TenantCost:
    requests = request_buckets(quota, count)
    tokens = token_buckets(quota, () if requests is None else requests.sizes)
    found = TenantCost(bucket=name)
    if requests is not None:
        found = TenantCost(
            bucket=bucket_name(name, requests.place(sized_by)),
            cost=min(math.ceil(requests.cost(part)), LARGEST_BUCKET),
            per_s=requests.per_s,
        )
    if tokens is None:
        return found
    return replace(found, token_cost=tokens.cost(part), most_tokens=tokens.sizes[0], tokens_per_s=tokens.per_s)


def _lua_row(one: TenantCost) -> str:
    found = f'bucket = "{one.bucket}", cost = {one.cost}'
    if one.per_s is not None:
        found += f", per_s = {one.per_s:.12g}"
    if one.token_cost is not None:
        found += (
            f", token_cost = {one.token_cost:.12g}, most_tokens = {one.most_tokens}"
            f", tokens_per_s = {one.tokens_per_s:.12g}"
        )
    return found
