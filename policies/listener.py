"""The listener of a port: where Envoy accepts requests, who may send them, and what it reads of them."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from policies.caller_auth import ExtAuth, ExtAuthProtocol, Jwt, parse_claim_header
from policies.deadline import Deadline
from policies.document import Spec, documented_field
from policies.engine_tls import LISTENER_SECRET
from policies.external_service import ExternalService, ServiceReference
from policies.fidelity import approximated, kept, lost
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Duration, IpAddress, Name, Port
from policies.tenants import Tenants


class RequestId(StrEnum):
    """Source of a request's id."""

    GENERATE = "generate"
    KEEP = "keep"  # the caller's, if it sent one


class RequestFields(StrEnum):
    """Source of the fields that routes and limits need: model, stream, token limit."""

    BODY = "body"
    HEADERS = "headers"  # stated by a trusted caller


class AccessLog(StrEnum):
    """Where Envoy writes a line for each request."""

    NONE = "none"
    STDOUT = "stdout"
    STDERR = "stderr"


AccessLogFile = Annotated[str, Field(pattern=r"^/var/log/envoy/[A-Za-z0-9][-A-Za-z0-9._]*$", max_length=255)]
"""A file in the folder of Envoy's logs."""

_ACCESS_LOG: Final = FieldTargets(
    live=Xds.LDS,
    istio=lost("Istio's Telemetry resource sets access logs"),
    gateway_api=lost("the Gateway's owner sets it: EnvoyProxy, telemetry.accessLog"),
)
_OF_THE_GATEWAY: Final = "the Gateway's owner sets it: ClientTrafficPolicy"


def _of_callers(live: Xds) -> FieldTargets:
    return FieldTargets(
        live=live,
        istio=lost(
            "Istio's Gateway resource verifies callers: servers[].tls.mode MUTUAL; in the mesh, Istio does"
        ),
        gateway_api=lost(f"{_OF_THE_GATEWAY}, tls.clientValidation"),
    )


class CallerNameKind(StrEnum):
    """Names in the certificate of a caller."""

    URI = "uri"
    DNS = "dns"


class CallerCertificates(Spec):
    """Certificates of callers, and the header that names them."""

    secret: Name | None = documented_field(
        None,
        "Folder in `serve --secrets DIR` whose ca.crt signs certificates of callers; default: the one of `tls`.",
        targets=_of_callers(Xds.LDS | Xds.SDS),
    )
    required: bool = documented_field(
        True,
        "Refuse connections without a certificate. false: they are served without an identity.",
        targets=_of_callers(Xds.LDS),
    )
    identity_header: Annotated[str, Field(max_length=64), AfterValidator(parse_claim_header)] | None = (
        documented_field(
            None,
            "Request header that Envoy sets to the identity of the caller, for `tenants`, affinity and engines. "
            "What callers send under its name is removed.",
            targets=_of_callers(Xds.LDS),
        )
    )
    identity: CallerNameKind = documented_field(
        CallerNameKind.URI,
        "Subject alternative names that are the identity. uri: as SPIFFE has them. dns: host names. Several are "
        "joined by commas.",
        targets=_of_callers(Xds.LDS),
    )


class ListenerTls(Spec):
    """TLS towards callers."""

    secret: Name = documented_field(
        ...,
        "Name of the certificate: a folder in `serve --secrets DIR` with ca.crt, tls.crt and tls.key.",
        targets=FieldTargets(
            live=Xds.SDS | Xds.LDS,
            istio=lost("Istio's Gateway resource has the certificate: servers[].tls.credentialName"),
            gateway_api=lost("the Gateway's owner sets it: listeners[].tls.certificateRefs"),
        ),
    )
    callers: CallerCertificates | None = documented_field(
        None, "Certificates of callers (mTLS); default: none is asked for."
    )

    @property
    def authorities(self) -> str | None:
        """Name of the secret whose CAs verify callers; None if they need no certificate."""
        return None if self.callers is None else self.callers.secret or self.secret


class Listener(Spec):
    """The listener of Envoy for this route."""

    port: Port = documented_field(
        ...,
        "Port of the Envoys.",
        targets=FieldTargets(
            live=Xds.RDS | Xds.LDS | Xds.CDS | Xds.ECDS,
            istio=kept("port of the host that callers ask for, or of the gateway", "VirtualService"),
            gateway_api=approximated("parentRefs[].port: the Gateway must listen on it", "HTTPRoute"),
        ),
    )
    address: IpAddress = documented_field(
        "0.0.0.0",
        "IP address that the Envoys bind; :: for all of IPv4 and IPv6.",
        targets=FieldTargets(
            live=Xds.LDS,
            istio=kept("Istio's proxies listen on every address", "VirtualService"),
            gateway_api=kept("the Gateway sets its addresses"),
        ),
    )
    receive_timeout: Duration = documented_field(
        60.0,
        "Longest time to receive a request with its body, then 408; 0 disables it.",
        why="without it a caller that stops in the middle of a body holds 14 MiB of Envoy's memory without limit; "
        "60 s are enough for 14 MiB at 2 Mbit/s",
        unit="duration",
        targets=FieldTargets(
            live=Xds.LDS,
            istio=lost("Istio's listeners have no limit; set one with your own EnvoyFilter"),
            gateway_api=lost(
                "the Gateway's owner sets it: ClientTrafficPolicy, timeout.http.requestReceivedTimeout"
            ),
        ),
        ge=0,
        le=3600,
    )
    trusted_hops: int = documented_field(
        0,
        "Number of proxies in front of Envoy that append to `x-forwarded-for`; the caller's address is the one "
        "that the first of them added.",
        why="with 0 all callers behind a load balancer have its address; with more than the real number they "
        "choose their address",
        targets=FieldTargets(
            live=Xds.LDS,
            istio=lost("Istio sets it for a whole proxy: gatewayTopology.numTrustedProxies"),
            gateway_api=lost(f"{_OF_THE_GATEWAY}, clientIPDetection.xForwardedFor.numTrustedHops"),
        ),
        ge=0,
        le=16,
    )
    request_id: RequestId = documented_field(
        RequestId.GENERATE,
        "generate: Envoy gives each request an id and ignores the caller's `x-request-id`. keep: it keeps the "
        "caller's, for a load balancer that sets a unique one.",
        why="engines identify requests by it, and callers' ids may repeat",
        targets=FieldTargets(
            live=Xds.LDS,
            istio=lost(
                "Istio keeps the ids of callers in the mesh; set preserve_external_request_id with your own "
                "EnvoyFilter"
            ),
            gateway_api=lost(f"{_OF_THE_GATEWAY}, headers.requestID"),
        ),
    )
    request_fields: RequestFields = documented_field(
        RequestFields.BODY,
        "Source of model, stream and token limit. body: Envoy reads them in JSON bodies and forms. headers: a "
        "trusted caller states them in `x-switchgear-model`, `x-switchgear-stream` and `x-switchgear-max-tokens`, "
        "and Envoy reads no body to choose a route.",
        why="reading a body costs Envoy up to twice the processor time; with headers a caller that states another "
        "model than its body's chooses the pool",
        targets=FieldTargets(
            live=Xds.LDS | Xds.RDS | Xds.ECDS,
            istio=kept("Istio reads no bodies; conditions are on the same headers", "VirtualService"),
            gateway_api=kept("gateways read no bodies; conditions are on headers", "HTTPRoute"),
        ),
    )
    access_log: AccessLog = documented_field(
        AccessLog.NONE,
        "Where Envoy writes a JSON line for each request.",
        targets=_ACCESS_LOG,
    )
    access_log_file: AccessLogFile | None = documented_field(
        None,
        "File below /var/log/envoy that each Envoy appends the same lines to. The folder must exist: otherwise "
        "Envoy refuses the listener.",
        why="one folder only: a writer of policies could otherwise append to any file of the Envoys",
        targets=_ACCESS_LOG,
    )
    access_log_collector: ExternalService | None = documented_field(
        None,
        "OpenTelemetry collector that gets the same fields as log records by OTLP over gRPC.",
    )
    tls: ListenerTls | None = documented_field(
        None, "TLS 1.2 or 1.3 towards callers, with HTTP/1.1 and HTTP/2; default: plain text."
    )

    jwt: Jwt | None = documented_field(
        None, "Tokens that callers must have; default: none. For all routes of the port that are not `public`."
    )
    ext_auth: ExtAuth | None = documented_field(
        None,
        "Service that must allow each request, without its body; default: none. It is asked after jwt, for all "
        "routes of the port that are not `public`.",
    )
    tenants: Tenants | None = documented_field(
        None, "Tenants of the port and the requests that each may send; default: all callers are alike."
    )
    deadline: Deadline | None = documented_field(
        None, "Deadlines of callers, in a header; default: only the time limits of the route count."
    )

    @property
    def reads_headers(self) -> bool:
        """Whether callers state model, stream and token limit in headers."""
        return self.request_fields is RequestFields.HEADERS

    @property
    def secret(self) -> str | None:
        """Name of the certificate shown to callers; None without TLS."""
        return None if self.tls is None else self.tls.secret

    def claim_headers(self) -> tuple[str, ...]:
        """Request headers that only claims may set."""
        providers = () if self.jwt is None else self.jwt.providers
        return tuple(dict.fromkeys(one.header for provider in providers for one in provider.claim_to_headers))

    @property
    def identity_header(self) -> str | None:
        """Request header with the identity in a caller's certificate."""
        callers = None if self.tls is None else self.tls.callers
        return None if callers is None else callers.identity_header

    def proven_headers(self) -> tuple[str, ...]:
        """Request headers that only Envoy sets, from claims or certificates."""
        identity = self.identity_header
        return self.claim_headers() if identity is None else (*self.claim_headers(), identity)

    def external_services(self) -> Iterator[ServiceReference]:
        """Services that Envoys call for this listener."""
        if self.access_log_collector is not None:
            yield ServiceReference(field="accessLogCollector", service=self.access_log_collector, grpc=True)
        if self.ext_auth is not None:
            grpc = self.ext_auth.protocol is ExtAuthProtocol.GRPC
            yield ServiceReference(field="extAuth", service=self.ext_auth, grpc=grpc)
        for number, provider in enumerate(self.jwt.providers if self.jwt is not None else ()):
            if provider.remote_jwks is not None:
                field = f"jwt.providers[{number}].remoteJwks"
                yield ServiceReference(field=field, service=provider.remote_jwks.service(), grpc=False)

    def named_secrets(self) -> Iterator[tuple[str, str]]:
        """Names of secrets, each with the path of the field that names it."""
        if self.tls is not None:
            yield LISTENER_SECRET, self.tls.secret
            if self.tls.callers is not None and self.tls.callers.secret is not None:
                yield "spec.listener.tls.callers.secret", self.tls.callers.secret
        for one in self.external_services():
            if one.service.tls is not None and one.service.tls.secret is not None:
                yield f"spec.listener.{one.field}.tls.secret", one.service.tls.secret
