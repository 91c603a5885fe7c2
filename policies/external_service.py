"""Services outside of the fleet that Envoys call for a listener: log collectors, authorization, token keys."""

from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field

from policies.document import Spec, documented_field
from policies.engine_tls import ServerName
from policies.fidelity import lost
from policies.field_targets import FieldTargets, Xds
from policies.quantity import HostAddress, Name, Port, is_ip, parse_host

_ISTIO: Final = lost("add an entry to extensionProviders of the MeshConfig")
_GATEWAY: Final = lost("the Gateway's owner sets it: backendRefs of EnvoyProxy or SecurityPolicy")

_CLUSTER: Final = FieldTargets(live=Xds.CDS, istio=_ISTIO, gateway_api=_GATEWAY)


class ExternalTls(Spec):
    """TLS from Envoy to an external service."""

    secret: Name | None = documented_field(
        None,
        "Name of the CA bundle: a folder in `serve --secrets DIR` with ca.crt; default: the CAs of the Envoy's "
        "machine, /etc/ssl/certs/ca-certificates.crt.",
        targets=FieldTargets(live=Xds.SDS | Xds.CDS, istio=_ISTIO, gateway_api=_GATEWAY),
    )
    server_name: ServerName | None = documented_field(
        None,
        "Name sent as SNI and required in the certificate; default: the host name of the service.",
        targets=_CLUSTER,
    )


class ExternalService(Spec):
    """Address of an external service."""

    address: HostAddress = documented_field(
        ..., "IP address or host name, resolved by each Envoy.", targets=_CLUSTER
    )
    port: Port = documented_field(..., "TCP port.", targets=_CLUSTER)
    tls: ExternalTls | None = documented_field(None, "TLS to the service; default: plain text.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReference:
    """A field of a listener that names a service; ``grpc``: how Envoys call it, otherwise HTTP/1.1."""

    field: str
    service: ExternalService
    grpc: bool


HTTP_PORTS: Final = {"http": 80, "https": 443}
"""Schemes of a URI that Envoys fetch, with their ports."""


def split_uri(value: str) -> SplitResult:
    """The parts of a URI that Envoys can fetch; ValueError says what is allowed."""
    parts = urlsplit(value)
    if parts.scheme not in HTTP_PORTS or not parts.hostname:
        msg = f"{value!r} is not an absolute URI: write https://idp.example.com/keys"
        raise ValueError(msg)
    if parts.username is not None or parts.fragment or not value.isascii() or not value.isprintable():
        msg = f"{value!r}: user name, fragment and special characters are not allowed in this URI"
        raise ValueError(msg)
    parse_host(parts.hostname)
    if parts.port == 0:  # also raises ValueError above 65535
        msg = f"{value!r} has port 0"
        raise ValueError(msg)
    return parts


def parse_uri(value: str) -> str:
    """The text if Envoys can fetch it; ValueError says why not."""
    split_uri(value)
    return value


HttpUri = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(parse_uri)]
"""An absolute http or https URI."""


def nameless(service: ExternalService) -> bool:
    """Whether TLS to the service has no name to verify."""
    return service.tls is not None and service.tls.server_name is None and is_ip(service.address)
