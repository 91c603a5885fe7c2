"""The filters in the cluster of a decode pool that name a prefill engine to the routing side-car.

They run for each try, after Envoy has chosen the decode engine. The first copies the list of its endpoint
(``prefillers``) into a header, the second draws an engine from it by weight. Routes with ``prefill`` ask for that;
for all others the second filter only removes what a caller may have sent.
"""

from collections.abc import Mapping
from string import Template
from typing import Final

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as MutationRule
from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import HeaderMutation, Mutations
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua, LuaPerRoute
from envoy_data_plane.envoy.extensions.filters.http.upstream_codec.v3 import UpstreamCodec
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.google.protobuf import Any, Struct, Value

from policies.route import ModelRoute
from policies.tenants import BYTES_PER_TOKEN
from xds_server.translate.envoy_values import pack_any
from xds_server.translate.prefillers import PREFILLER_HEADER, PREFILLERS_LABEL

_LIST_HEADER: Final = "x-switchgear-prefillers"
_LIST_FILTER: Final = "switchgear.prefillers"
_DRAW_FILTER: Final = "switchgear.prefiller"
_DRAW: Final = "draw"

_REMOVE: Final = """\
function envoy_on_request(handle)
  handle:headers():remove("$header")
  handle:headers():remove("$list")
end
"""

_LONG_ONLY: Final = """\
  local bytes = headers:get("content-length")
  if bytes and tonumber(bytes) <= $bytes_per_token * tonumber(handle:filterContext():get("above")) then return end
"""
"""Lines of the script of routes with ``tokensAbove``. A body without content-length counts as long."""

_DRAW_LUA: Final = """\
-- Draws one of "ADDRESS=WEIGHT,ADDRESS=WEIGHT". What an earlier try drew is replaced.
function envoy_on_request(handle)
  local headers = handle:headers()
  local list = headers:get("$list")
  headers:remove("$list")
  headers:remove("$header")
${long_only}  if not list or math.random() * 100 >= tonumber(handle:filterContext():get("percent")) then return end
  local total = 0
  for weight in list:gmatch("=(%d+)") do total = total + weight end
  local left = math.random() * total
  for address, weight in list:gmatch("([^=,]+)=(%d+)") do
    left = left - weight
    if left < 0 then
      headers:add("$header", address)
      return
    end
  end
end
"""


def prefill_filters() -> list[HttpFilter]:
    """The filters of a decode pool's cluster; the last one sends the request."""
    # A caller's header of this name must not stand for a list: an endpoint may have none.
    mutations = [
        MutationRule(remove=_LIST_HEADER),
        MutationRule(
            append=HeaderValueOption(
                header=HeaderValue(key=_LIST_HEADER, value=f"%UPSTREAM_METADATA(envoy.lb:{PREFILLERS_LABEL})%"),
                append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
            )
        ),
    ]
    draw = Lua(
        default_source_code=DataSource(inline_string=_script(_REMOVE)),
        source_codes={_DRAW: DataSource(inline_string=_script(_DRAW_LUA))},
    )
    return [
        HttpFilter(
            name=_LIST_FILTER,
            typed_config=pack_any(HeaderMutation(mutations=Mutations(request_mutations=mutations))),
        ),
        HttpFilter(name=_DRAW_FILTER, typed_config=pack_any(draw)),
        HttpFilter(name="envoy.filters.http.upstream_codec", typed_config=pack_any(UpstreamCodec())),
    ]


def names_prefiller(route: ModelRoute) -> Mapping[str, Any]:
    """Per-filter configuration of a route with ``prefill``; empty for others."""
    prefill = route.spec.prefill
    if prefill is None:
        return {}
    context = {"percent": Value(string_value=f"{prefill.percent:g}")}
    if prefill.tokens_above is None:
        return {_DRAW_FILTER: pack_any(LuaPerRoute(name=_DRAW, filter_context=Struct(fields=context)))}
    context["above"] = Value(string_value=str(prefill.tokens_above))
    # The route has the script, so that the field changes no cluster: Envoy would forget counts and ejections.
    script = DataSource(inline_string=_script(_DRAW_LUA, long_only=_script(_LONG_ONLY)))
    return {_DRAW_FILTER: pack_any(LuaPerRoute(source_code=script, filter_context=Struct(fields=context)))}


def callers_headers(route: ModelRoute) -> list[str]:
    """Headers that are removed from the requests of a route: a fallback may be a pool without these filters."""
    return [] if route.spec.prefill is None else [PREFILLER_HEADER]


def _script(text: str, *, long_only: str = "") -> str:
    return Template(text).substitute(
        header=PREFILLER_HEADER, list=_LIST_HEADER, long_only=long_only, bytes_per_token=BYTES_PER_TOKEN
    )
