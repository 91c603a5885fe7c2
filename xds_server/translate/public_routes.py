"""Routes whose callers need no token and no authorization."""

from collections.abc import Mapping
from typing import Final

from envoy_data_plane.envoy.extensions.filters.http.ext_authz.v3 import ExtAuthzPerRoute
from envoy_data_plane.envoy.extensions.filters.http.jwt_authn.v3 import PerRouteConfig
from envoy_data_plane.google.protobuf import Any

from policies.route import ModelRoute
from xds_server.translate.envoy_values import pack_any

JWT_FILTER: Final = "envoy.filters.http.jwt_authn"
EXT_AUTH_FILTER: Final = "envoy.filters.http.ext_authz"


def unchecked(route: ModelRoute) -> Mapping[str, Any]:
    """Per-filter configuration of a route: disables the filters that check callers if it is public."""
    found: dict[str, Any] = {}
    if route.spec.public and route.spec.listener.jwt is not None:
        found[JWT_FILTER] = pack_any(PerRouteConfig(disabled=True))
    if route.spec.public and route.spec.listener.ext_auth is not None:
        found[EXT_AUTH_FILTER] = pack_any(ExtAuthzPerRoute(disabled=True))
    return found
