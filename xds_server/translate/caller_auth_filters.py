"""Envoy's filters that check callers: tokens first, then the authorization service.

They stand before all other filters, so that a refused request takes no memory for its body, no admission slot and
no degradation level. They choose by the route without the body: see ``relations._public``.

Source: envoy/extensions/filters/http/jwt_authn/v3/config.proto, ext_authz/v3/ext_authz.proto.
"""

from collections.abc import Iterator
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    DataSource,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HttpUri,
)
from envoy_data_plane.envoy.config.route.v3 import RouteMatch
from envoy_data_plane.envoy.extensions.filters.http.ext_authz.v3 import ExtAuthz, HttpService
from envoy_data_plane.envoy.extensions.filters.http.jwt_authn.v3 import (
    JwksAsyncFetch,
    JwtAuthentication,
    JwtClaimToHeader,
    JwtProvider,
    JwtRequirement,
    JwtRequirementOrList,
    RemoteJwks,
    RequirementRule,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode

from policies.caller_auth import ExtAuth, ExtAuthProtocol, Jwt
from policies.caller_auth import JwtProvider as ProviderSpec
from policies.listener import Listener
from xds_server.translate.envoy_values import pack_any, seconds
from xds_server.translate.external_clusters import external_cluster_name
from xds_server.translate.public_routes import EXT_AUTH_FILTER, JWT_FILTER

EXT_AUTH_FLAG: Final = "UAEX"
"""Envoy's response flag of refusals by the authorization service, and of failures to ask it."""

EXT_AUTH_UNAVAILABLE: Final = 503
"""Reply when the service cannot be asked; Envoy's default of 403 would tell callers not to try again."""

KEY_FETCH_TIMEOUT_S: Final = 5.0
"""Time of a fetch of keys; Envoy repeats a failed one each second."""


def caller_auth_filters(spec: Listener) -> Iterator[HttpFilter]:
    """The filters of a listener that check callers; none if it requires nothing."""
    if spec.jwt is not None:
        yield HttpFilter(name=JWT_FILTER, typed_config=pack_any(_jwt(spec.port, spec.jwt)))
    if spec.ext_auth is not None:
        yield HttpFilter(name=EXT_AUTH_FILTER, typed_config=pack_any(_ext_auth(spec.port, spec.ext_auth)))


def _jwt(port: int, jwt: Jwt) -> JwtAuthentication:
    names = [JwtRequirement(provider_name=one.name) for one in jwt.providers]
    requires = (
        names[0] if len(names) == 1 else JwtRequirement(requires_any=JwtRequirementOrList(requirements=names))
    )
    return JwtAuthentication(
        providers={one.name: _provider(port, number, one) for number, one in enumerate(jwt.providers)},
        rules=[RequirementRule(match=RouteMatch(prefix="/"), requires=requires)],
    )


def _provider(port: int, number: int, spec: ProviderSpec) -> JwtProvider:
    claims = [JwtClaimToHeader(claim_name=one.claim, header_name=one.header) for one in spec.claim_to_headers]
    provider = JwtProvider(
        issuer=spec.issuer,
        audiences=list(spec.audiences),
        # Without it Envoy accepts a token without `exp` without limit.
        require_expiration=True,
        claim_to_headers=claims,
        # Routes may match on the headers.
        clear_route_cache=bool(claims),
    )
    if (remote := spec.remote_jwks) is not None:
        cluster = external_cluster_name(port, f"jwt.providers[{number}].remoteJwks")
        provider.remote_jwks = RemoteJwks(
            http_uri=HttpUri(uri=remote.uri, cluster=cluster, timeout=seconds(KEY_FETCH_TIMEOUT_S)),
            cache_duration=seconds(remote.cache_duration),
            # In the background: no request waits for keys, and while the issuer is lost the old ones are used.
            async_fetch=JwksAsyncFetch(),
        )
    elif (local := spec.local_jwks) is not None:
        provider.local_jwks = (
            DataSource(inline_string=local.inline) if local.inline else DataSource(filename=local.file or "")
        )
    return provider


def _ext_auth(port: int, spec: ExtAuth) -> ExtAuthz:
    cluster = external_cluster_name(port, "extAuth")
    filter_config = ExtAuthz(
        transport_api_version=ApiVersion.V3,
        failure_mode_allow=spec.failure_mode_allow,
        status_on_error=HttpStatus(code=StatusCode(EXT_AUTH_UNAVAILABLE)),
    )
    if spec.protocol is ExtAuthProtocol.GRPC:
        filter_config.grpc_service = GrpcService(
            envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=cluster), timeout=seconds(spec.timeout)
        )
    else:
        # Envoy connects to the cluster and asks with the caller's host; it only requires a URI.
        uri = HttpUri(uri="http://ext-auth", cluster=cluster, timeout=seconds(spec.timeout))
        filter_config.http_service = HttpService(server_uri=uri, path_prefix=spec.path_prefix)
    return filter_config
