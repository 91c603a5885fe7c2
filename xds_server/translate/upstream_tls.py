"""TLS to engines: in a cluster only the names of certificates, the certificates themselves by SDS.

So a certificate that changes changes no byte of a cluster, which Envoy would warm anew and forget what it counted;
connections that are open stay so, and new ones use what is new.

Whose name an engine has to prove:

* ``subjectAltNames`` where a pool says them: any one of them.
* Else ``serverName``, which is asked for (SNI) as well.
* Else the host name of the engine: Envoy takes it from the endpoint (``auto_host_sni``), and holds the certificate
  to what it asked for (``auto_sni_san_validation``). An IP address cannot be asked for, so the loader refuses a
  pool that has engines at addresses and neither of the two above.

Never by the name in the request (``auto_sni`` of the cluster's HTTP options): whoever sends requests would choose
whom the proxy trusts.

Source: envoy/extensions/transport_sockets/tls/v3/tls.proto, common.proto.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import DataSource, TransportSocket
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    CommonTlsContextCombinedCertificateValidationContext,
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

from policies.engine_tls import EngineTls, expression, is_uri
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.quantity import is_ip
from xds_server.model.memo import Memo
from xds_server.model.secret import EngineSecret, Secrets
from xds_server.model.type_urls import SECRET
from xds_server.translate.envoy_values import ads_config_source, pack_any
from xds_server.translate.origins import secret_origins
from xds_server.translate.translated_resource import TranslatedResource

_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


def secret_resources(
    policies: PolicySet, pools: Iterable[str], secrets: Secrets, memo: Memo, *, keys: bool
) -> tuple[TranslatedResource, ...]:
    """The secrets that these pools name, as far as there are any; what holds a private key only with ``keys``."""
    asked: dict[str, list[str]] = {}
    for pool in pools:
        tls = policies.pools[pool].spec.tls
        if tls is not None:
            asked.setdefault(tls.secret, []).append(pool)
    return tuple(
        item
        for name in sorted(asked)
        if (secret := secrets.get(name)) is not None
        for item in _secret_resources(secret, secret_origins(policies, asked[name]), memo, keys=keys)
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
    chain, key = secret.chain, secret.key
    if keys and chain is not None and key is not None:
        shown = certificate_name(secret.name)
        yield memo.of(
            (SECRET, shown, origins),
            (chain, key),
            lambda: TranslatedResource(
                type_url=SECRET, name=shown, message=certificate_secret(secret.name, chain, key), origins=origins
            ),
        )


def engine_host_names(pool: EnginePool) -> Mapping[str, str]:
    """The host names that engines of a pool have to prove, by engine; none where the pool names others for all.

    Only where they matter: they are a part of the endpoints, and an engine's name is no news to plain HTTP.
    """
    tls = pool.spec.tls
    if tls is None or tls.server_name is not None:
        return _NO_NAMES
    return MappingProxyType(
        {one.name: one.address.rstrip(".") for one in pool.spec.endpoints if not is_ip(one.address)}
    )


SECRET_FETCH_TIMEOUT_S: Final = 1.0
"""How long a cluster waits for its certificates. One without them refuses requests at once; Envoy's 15 s would
hold back every other cluster and route of the same push."""

_AUTHORITIES: Final = "authorities"
_CERTIFICATE: Final = "certificate"

_ALPN: Final = ("http/1.1",)
"""What engines speak, and what the cluster's HTTP options say."""

_VERSIONS: Final = TlsParameters(
    tls_minimum_protocol_version=TlsParametersTlsProtocol.TLSv1_2,
    # Left out, Envoy offers nothing above 1.2 as a client: engines that insist on 1.3 would have no proxy.
    tls_maximum_protocol_version=TlsParametersTlsProtocol.TLSv1_3,
)


def trusted_ca_name(secret: str) -> str:
    """Name under which the authorities of a secret are pushed."""
    return f"{secret}/{_AUTHORITIES}"


def certificate_name(secret: str) -> str:
    """Name under which the certificate that proxies show, and its key, are pushed."""
    return f"{secret}/{_CERTIFICATE}"


def rejected_secret(name: str, reason: str) -> str:
    """The name of the secret that a refusal of this one means.

    Envoy makes one TLS context of both, once it has both, and refuses the one that came last for whatever is wrong
    with either; the first was confirmed unseen. Which it is stands in the text, in Envoy's own words.
    """
    secret, _, half = name.rpartition("/")
    if half == _CERTIFICATE and "trusted CA" in reason:
        return trusted_ca_name(secret)
    if half == _AUTHORITIES and any(what in reason for what in ("certificate chain", "private key")):
        return certificate_name(secret)
    return name


def upstream_tls_socket(tls: EngineTls, *, certified: bool) -> TransportSocket:
    """How a proxy connects to an engine; with ``certified`` it shows a certificate of its own."""
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


def trusted_ca_secret(secret: EngineSecret) -> Secret:
    """Whom proxies trust, as they are sent it."""
    trusted = CertificateValidationContext(trusted_ca=DataSource(inline_bytes=secret.authorities))
    return Secret(name=trusted_ca_name(secret.name), validation_context=trusted)


def certificate_secret(name: str, chain: bytes, key: bytes) -> Secret:
    """What proxies prove themselves with, as they are sent it."""
    shown = TlsCertificate(
        certificate_chain=DataSource(inline_bytes=chain), private_key=DataSource(inline_bytes=key)
    )
    return Secret(name=certificate_name(name), tls_certificate=shown)


def _over_sds(name: str) -> SdsSecretConfig:
    return SdsSecretConfig(name=name, sds_config=ads_config_source(SECRET_FETCH_TIMEOUT_S))


def _matcher(name: str) -> SubjectAltNameMatcher:
    """A name as Envoy compares it. To an exact DNS name a certificate for ``*.x`` will do, as TLS has it."""
    if "*" in name:
        matcher = StringMatcher(safe_regex=RegexMatcher(regex=expression(name)))
    else:
        matcher = StringMatcher(exact=name)
    kind = SubjectAltNameMatcherSanType.URI if is_uri(name) else SubjectAltNameMatcherSanType.DNS
    return SubjectAltNameMatcher(san_type=kind, matcher=matcher)
