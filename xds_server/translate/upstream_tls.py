"""TLS to engines, callers and external services: resources contain only names of certificates, which come by SDS.

So a rotated certificate changes no cluster, which Envoy would warm again, losing its counts. Open connections
stay; new ones use the new certificate.

Names required in an engine's certificate:

* ``subjectAltNames`` of the pool, if set: any one of them.
* Else ``serverName``, which is also sent as SNI.
* Else the engine's host name: Envoy takes it from the endpoint (``auto_host_sni``) and verifies it
  (``auto_sni_san_validation``). An IP address cannot be sent as SNI, so the loader refuses a pool with engines at
  addresses and neither of the two above.

Never the name in the request (``auto_sni`` of the cluster's HTTP options): callers
could then choose the name that the proxy trusts.

Source: envoy/extensions/transport_sockets/tls/v3/tls.proto, common.proto.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import DataSource, TransportSocket
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    CommonTlsContextCombinedCertificateValidationContext,
    DownstreamTlsContext,
    SdsSecretConfig,
    Secret,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    TlsCertificate,
    TlsParameters,
    TlsParametersTlsProtocol,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher

from policies.engine_tls import POOL_SECRET, EngineTls, expression, is_uri
from policies.external_service import ExternalService
from policies.listener import ListenerTls
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.quantity import is_ip
from xds_server.model.memo import Memo
from xds_server.model.secret import EngineSecret, Secrets
from xds_server.model.type_urls import SECRET
from xds_server.translate.envoy_values import ads_config_source, pack_any
from xds_server.translate.origins import secret_origins
from xds_server.translate.translated_resource import TranslatedResource
from xds_server.translate.visibility import VisiblePolicies

_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


def secret_resources(
    policies: PolicySet, here: VisiblePolicies, secrets: Secrets, memo: Memo, *, keys: bool
) -> tuple[TranslatedResource, ...]:
    """Available secrets named by visible pools and listeners; private keys only with ``keys``."""
    named: dict[str, list[tuple[str, str, str]]] = {}
    for pool in here.pools:
        tls = policies.pools[pool].spec.tls
        if tls is not None:
            named.setdefault(tls.secret, []).append(("EnginePool", pool, POOL_SECRET))
    for route in chain.from_iterable(here.routes.values()):
        for path, secret_name in route.spec.listener.named_secrets():
            named.setdefault(secret_name, []).append(("ModelRoute", route.metadata.name, path))
    return tuple(
        item
        for name in sorted(named)
        if (secret := secrets.get(name)) is not None
        for item in _secret_resources(secret, secret_origins(policies, named[name]), memo, keys=keys)
    )


def _secret_resources(
    secret: EngineSecret, origins: tuple[str, ...], memo: Memo, *, keys: bool
) -> Iterable[TranslatedResource]:
    trusted = trusted_ca_name(secret.name)
    yield memo.of(
        (SECRET, trusted, origins),
        (secret.authorities,),
        lambda: TranslatedResource(
            type_url=SECRET, name=trusted, message=trusted_ca_secret(secret), origins=origins
        ),
    )
    certificates, key = secret.chain, secret.key
    if keys and certificates is not None and key is not None:
        shown = certificate_name(secret.name)
        yield memo.of(
            (SECRET, shown, origins),
            (certificates, key),
            lambda: TranslatedResource(
                type_url=SECRET,
                name=shown,
                message=certificate_secret(secret.name, certificates, key),
                origins=origins,
            ),
        )


def engine_host_names(pool: EnginePool) -> Mapping[str, str]:
    """Host names required in engine certificates, by engine; empty if the pool sets names for all.

    Only with TLS: they are part of the endpoints, and plain HTTP ignores them.
    """
    tls = pool.spec.tls
    if tls is None or tls.server_name is not None:
        return _NO_NAMES
    return MappingProxyType(
        {one.name: one.address.rstrip(".") for one in pool.spec.endpoints if not is_ip(one.address)}
    )


SECRET_FETCH_TIMEOUT_S: Final = 1.0
"""Wait of a cluster for its certificates. A cluster without them refuses requests at once; Envoy's 15 s would
delay all clusters and routes of the push.
"""

_AUTHORITIES: Final = "authorities"
_CERTIFICATE: Final = "certificate"

_ALPN: Final = ("http/1.1",)
"""Protocol of the engines, as in the cluster's HTTP options."""

MACHINE_CAS: Final = "/etc/ssl/certs/ca-certificates.crt"
"""CA bundle of an Envoy's machine: Debian, Ubuntu, Alpine and Envoy's own images have it here."""

_CALLERS_ALPN: Final = ("h2", "http/1.1")

_VERSIONS: Final = TlsParameters(
    tls_minimum_protocol_version=TlsParametersTlsProtocol.TLSv1_2,
    # By default Envoy's client offers TLS 1.2 at most; engines that require 1.3 would be unreachable.
    tls_maximum_protocol_version=TlsParametersTlsProtocol.TLSv1_3,
)


def trusted_ca_name(secret: str) -> str:
    """Resource name of a secret's CA bundle."""
    return f"{secret}/{_AUTHORITIES}"


def certificate_name(secret: str) -> str:
    """Resource name of a secret's client certificate and key."""
    return f"{secret}/{_CERTIFICATE}"


def rejected_secret(name: str, reason: str) -> str:
    """Name of the secret that is really at fault in a refusal.

    Envoy builds one TLS context from both secrets and refuses the last one for a fault in either; the first was
    accepted unchecked. Envoy's message shows which it is.
    """
    secret, _, half = name.rpartition("/")
    if half == _CERTIFICATE and "trusted CA" in reason:
        return trusted_ca_name(secret)
    if half == _AUTHORITIES and any(what in reason for what in ("certificate chain", "private key")):
        return certificate_name(secret)
    return name


def upstream_tls_socket(tls: EngineTls, *, certified: bool) -> TransportSocket:
    """Transport socket for engines; with ``certified`` it presents a client certificate."""
    names = tls.subject_alt_names or ((tls.server_name,) if tls.server_name else ())
    context = UpstreamTlsContext(
        sni=tls.server_name or "",
        auto_host_sni=tls.server_name is None,
        auto_sni_san_validation=not names,
        common_tls_context=CommonTlsContext(
            tls_params=_VERSIONS,
            alpn_protocols=list(_ALPN),
            tls_certificate_sds_secret_configs=[_over_sds(certificate_name(tls.secret))] if certified else [],
            combined_validation_context=CommonTlsContextCombinedCertificateValidationContext(
                default_validation_context=CertificateValidationContext(
                    match_typed_subject_alt_names=[_matcher(name) for name in names]
                ),
                validation_context_sds_secret_config=_over_sds(trusted_ca_name(tls.secret)),
            ),
        ),
    )
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=pack_any(context))


def external_tls_socket(service: ExternalService, *, http2: bool) -> TransportSocket | None:
    """Transport socket for an external service; None for plain text."""
    tls = service.tls
    if tls is None:
        return None
    name = tls.server_name or service.address.rstrip(".")
    verified = CertificateValidationContext(match_typed_subject_alt_names=[_matcher(name)])
    common = CommonTlsContext(tls_params=_VERSIONS, alpn_protocols=["h2"] if http2 else list(_ALPN))
    if tls.secret is None:
        verified.trusted_ca = DataSource(filename=MACHINE_CAS)
        common.validation_context = verified
    else:
        common.combined_validation_context = CommonTlsContextCombinedCertificateValidationContext(
            default_validation_context=verified,
            validation_context_sds_secret_config=_over_sds(trusted_ca_name(tls.secret)),
        )
    return TransportSocket(
        name="envoy.transport_sockets.tls",
        typed_config=pack_any(UpstreamTlsContext(sni=name, common_tls_context=common)),
    )


def downstream_tls_socket(tls: ListenerTls) -> TransportSocket:
    """Transport socket for callers; it may ask them for a certificate."""
    common = CommonTlsContext(
        tls_params=_VERSIONS,
        alpn_protocols=list(_CALLERS_ALPN),
        tls_certificate_sds_secret_configs=[_over_sds(certificate_name(tls.secret))],
    )
    context = DownstreamTlsContext(common_tls_context=common)
    if tls.callers is not None and tls.authorities is not None:
        common.validation_context_sds_secret_config = _over_sds(trusted_ca_name(tls.authorities))
        context.require_client_certificate = tls.callers.required
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=pack_any(context))


def trusted_ca_secret(secret: EngineSecret) -> Secret:
    """CA bundle sent to proxies."""
    trusted = CertificateValidationContext(trusted_ca=DataSource(inline_bytes=secret.authorities))
    return Secret(name=trusted_ca_name(secret.name), validation_context=trusted)


def certificate_secret(name: str, chain: bytes, key: bytes) -> Secret:
    """Client certificate and key sent to proxies."""
    shown = TlsCertificate(
        certificate_chain=DataSource(inline_bytes=chain), private_key=DataSource(inline_bytes=key)
    )
    return Secret(name=certificate_name(name), tls_certificate=shown)


def _over_sds(name: str) -> SdsSecretConfig:
    return SdsSecretConfig(name=name, sds_config=ads_config_source(SECRET_FETCH_TIMEOUT_S))


def _matcher(name: str) -> SubjectAltNameMatcher:
    """Matcher for a name. An exact DNS name also matches a certificate for ``*.x``, as usual in TLS."""
    if "*" in name:
        matcher = StringMatcher(safe_regex=RegexMatcher(regex=expression(name)))
    else:
        matcher = StringMatcher(exact=name)
    kind = SubjectAltNameMatcherSanType.URI if is_uri(name) else SubjectAltNameMatcherSanType.DNS
    return SubjectAltNameMatcher(san_type=kind, matcher=matcher)
