"""Authentication and authorization of callers, done by Envoy's own filters and services of the operator."""

import json
import re
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from policies.document import Spec, documented_field
from policies.external_service import HTTP_PORTS, ExternalService, ExternalTls, HttpUri, split_uri
from policies.fidelity import lost
from policies.field_checks import CelRule, ListKeys
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Duration, Name

_ISTIO_JWT: Final = lost("write a RequestAuthentication and an AuthorizationPolicy that requires its principals")
_GATEWAY_JWT: Final = lost("write a SecurityPolicy of Envoy Gateway: jwt.providers")
_ISTIO_AUTHORIZATION: Final = lost("write an AuthorizationPolicy with action CUSTOM and an extension provider")
_GATEWAY_AUTHORIZATION: Final = lost("write a SecurityPolicy of Envoy Gateway: extAuth")


def _jwt(live: Xds) -> FieldTargets:
    return FieldTargets(live=live, istio=_ISTIO_JWT, gateway_api=_GATEWAY_JWT)


def _authorization(live: Xds) -> FieldTargets:
    return FieldTargets(live=live, istio=_ISTIO_AUTHORIZATION, gateway_api=_GATEWAY_AUTHORIZATION)


_CLAIM_HEADER: Final = re.compile(r"x-[a-z0-9]+(?:-[a-z0-9]+)*")
_RESERVED: Final = ("x-envoy-", "x-forwarded-", "x-switchgear-", "x-request-id")


def parse_claim_header(value: str) -> str:
    """The text if claims may be forwarded in this header; ValueError says what is allowed."""
    if not _CLAIM_HEADER.fullmatch(value) or value.startswith(_RESERVED):
        msg = f"{value!r} cannot name a caller: use lower case and the prefix x-, except {', '.join(_RESERVED)}"
        raise ValueError(msg)
    return value


def parse_key_set(value: str) -> str:
    """The text if it is a JSON Web Key Set of public keys; ValueError says why not."""
    try:
        keys = json.loads(value)["keys"]
        private = any("d" in key or key["kty"] == "oct" for key in keys)
    except (ValueError, LookupError, TypeError) as error:
        msg = 'not a JSON Web Key Set: write {"keys": [...]}, as the issuer publishes it'
        raise ValueError(msg) from error
    if not keys or private:
        msg = "a key set needs at least one key, and public keys only"
        raise ValueError(msg)
    return value


class RemoteKeySet(Spec):
    """A key set that each Envoy fetches."""

    uri: HttpUri = documented_field(
        ..., "URI of the JSON Web Key Set; the `jwks_uri` of the issuer.", targets=_jwt(Xds.LDS | Xds.CDS)
    )
    cache_duration: Duration = documented_field(
        300.0,
        "Time after which the keys are fetched again; until they arrive, the old ones are used.",
        why="a revoked key is accepted for at most this time",
        unit="duration",
        targets=_jwt(Xds.LDS),
        ge=1,
        le=86400,
    )
    tls: ExternalTls = documented_field(ExternalTls, "TLS of an https URI.")

    def service(self) -> ExternalService:
        """The server of the URI."""
        parts = split_uri(self.uri)
        return ExternalService(
            address=parts.hostname,
            port=parts.port or HTTP_PORTS[parts.scheme],
            tls=self.tls if parts.scheme == "https" else None,
        )


class LocalKeySet(Spec):
    """A key set that is not fetched; give one of the two."""

    inline: Annotated[str, Field(max_length=65536), AfterValidator(parse_key_set)] | None = documented_field(
        None, "The JSON Web Key Set itself, as text.", targets=_jwt(Xds.LDS)
    )
    file: str | None = documented_field(
        None,
        "File at each Envoy with the JSON Web Key Set, below /etc/envoy; read when the listener starts.",
        targets=_jwt(Xds.LDS),
        pattern=r"^/etc/envoy/(?:[A-Za-z0-9][-A-Za-z0-9._]*/)*[A-Za-z0-9][-A-Za-z0-9._]*$",
        max_length=255,
        checks=(
            CelRule(
                rule="has(self.inline) != has(self.file)",
                message="exactly one of inline and file",
                code="SG040",
            ),
        ),
    )


class ClaimHeader(Spec):
    """A claim of the token that engines get as a header."""

    claim: str = documented_field(
        ...,
        "Name of the claim; `a.b` for a nested one.",
        targets=_jwt(Xds.LDS),
        pattern=r"^[!-~]+$",
        max_length=253,
    )
    header: Annotated[str, Field(max_length=64), AfterValidator(parse_claim_header)] = documented_field(
        ...,
        "Request header that gets its value, such as x-caller. Callers cannot send it themselves.",
        targets=_jwt(Xds.LDS),
    )


class JwtProvider(Spec):
    """An issuer of tokens."""

    name: Name = documented_field(..., "Name of the provider, unique in the listener.", targets=_jwt(Xds.LDS))
    issuer: str = documented_field(
        ..., "Required `iss` of tokens.", targets=_jwt(Xds.LDS), min_length=1, max_length=2048
    )
    audiences: tuple[Annotated[str, Field(min_length=1, max_length=2048)], ...] = documented_field(
        (),
        "Accepted values of `aud`; empty: any.",
        targets=_jwt(Xds.LDS),
        max_length=32,
    )
    remote_jwks: RemoteKeySet | None = documented_field(None, "Key set at a URI.")
    local_jwks: LocalKeySet | None = documented_field(
        None,
        "Key set in the policy, or in a file of the Envoys.",
        checks=(
            CelRule(
                rule="has(self.remoteJwks) != has(self.localJwks)",
                message="exactly one of remoteJwks and localJwks",
                code="SG040",
            ),
        ),
    )
    claim_to_headers: tuple[ClaimHeader, ...] = documented_field(
        (),
        "Claims that become request headers; routes can match on them.",
        checks=(ListKeys(("header",)),),
        max_length=16,
    )


class Jwt(Spec):
    """JSON Web Tokens that callers must have."""

    providers: tuple[JwtProvider, ...] = documented_field(
        ...,
        "Issuers; a valid token of one of them is enough. It is removed from the request before engines get it.",
        checks=(ListKeys(("name",)),),
        min_length=1,
        max_length=8,
    )


class ExtAuthProtocol(StrEnum):
    """How Envoy asks the authorization service."""

    GRPC = "grpc"
    HTTP = "http"


class ExtAuth(ExternalService):
    """An authorization service that is asked about each request."""

    protocol: ExtAuthProtocol = documented_field(
        ExtAuthProtocol.GRPC,
        "grpc: envoy.service.auth.v3.Authorization. http: a request with the caller's method, path and "
        "`authorization`; status 200 allows.",
        targets=_authorization(Xds.LDS | Xds.CDS),
    )
    path_prefix: str = documented_field(
        "",
        "Prefix of the path that http asks for.",
        targets=_authorization(Xds.LDS),
        pattern=r"^(?:/[^\s?#]*)?$",
        max_length=1024,
    )
    timeout: Duration = documented_field(
        1.0,
        "Longest time of an answer; then the request is refused, or allowed by failureModeAllow.",
        why="callers wait for it before each request; Envoy's default of 200 ms refuses callers during a short "
        "pause of the service",
        unit="duration",
        targets=_authorization(Xds.LDS),
        gt=0,
        le=60,
    )
    failure_mode_allow: bool = documented_field(
        False,
        "Allow requests while the service cannot be asked.",
        why="otherwise a caller who disturbs the service gets in",
        targets=_authorization(Xds.LDS),
    )
