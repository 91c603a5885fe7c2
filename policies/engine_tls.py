"""How proxies speak TLS to the engines of a pool: which certificates, and whose name an engine has to prove.

A policy names certificates and never a file: who may write policies must not be able to make the control plane
send whatever it can read to a proxy. Where the named certificates are is set once, by ``serve --secrets DIR``.
"""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, Field

from policies.document import Spec, documented_field
from policies.fidelity import approximated, kept
from policies.field_targets import FieldTargets, Xds
from policies.findings import PolicyError, did_you_mean
from policies.origin import Origin
from policies.quantity import Name

_LABEL: Final = r"[A-Za-z0-9_](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?"
_DNS: Final = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*{_LABEL}")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s*]+(?:\*[^\s*]*)*(?:/\*\*)?")
_ADDRESS: Final = re.compile(r"[0-9.]+")


def parse_server_name(value: str) -> str:
    """The text if it is a DNS name for SNI; ValueError says what is allowed."""
    if "*" in value or _ADDRESS.fullmatch(value) or not _DNS.fullmatch(value):
        msg = (
            f"{value!r} is not a DNS name: TLS asks for names such as engine.example.com, never for an IP address"
        )
        raise ValueError(msg)
    return value


def parse_alt_name(value: str) -> str:
    """The text if it is a pattern of certificate names; ValueError says what is allowed."""
    if "://" in value:
        if not _URI.fullmatch(value):
            msg = f"{value!r} is not a URI: write spiffe://domain/path; * matches no slash, /** everything below"
            raise ValueError(msg)
        return value
    if _ADDRESS.fullmatch(value) or not _DNS.fullmatch(value):
        msg = (
            f"{value!r} is neither a DNS name (engine.example.com, *.example.com) nor a URI (spiffe://domain/path)"
        )
        raise ValueError(msg)
    return value


ServerName = Annotated[str, Field(min_length=1, max_length=253), AfterValidator(parse_server_name)]
"""A DNS name for SNI."""

AltName = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(parse_alt_name)]
"""A DNS name or URI of a certificate; ``*.x`` matches one label before ``.x``, ``*`` in a URI all but a slash."""


class EngineTls(Spec):
    """TLS from proxies and the control plane to engines."""

    secret: Name = documented_field(
        ...,
        "Name of the certificates: a folder in `serve --secrets DIR` with ca.crt, and tls.crt and tls.key if "
        "engines require client certificates.",
        targets=FieldTargets(
            live=Xds.SDS | Xds.CDS,
            istio=approximated(
                "credentialName of a Secret in the gateway's namespace; sidecars need the mounted file "
                "/etc/switchgear/secrets/NAME/ca.crt; mode is SIMPLE, set MUTUAL if engines require client "
                "certificates",
                "DestinationRule",
            ),
            gateway_api=approximated(
                "caCertificateRefs of a ConfigMap of this name with ca.crt; set client certificates at the "
                "Gateway by hand",
                "BackendTLSPolicy",
            ),
        ),
    )
    server_name: ServerName | None = documented_field(
        None,
        "Name sent as SNI and required in the engine's certificate; default: its host name.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.CDS,
            istio=kept("tls.sni, and tls.subjectAltNames where the pool sets none", "DestinationRule"),
            gateway_api=kept("hostname", "BackendTLSPolicy"),
        ),
    )
    subject_alt_names: tuple[AltName, ...] = documented_field(
        (),
        "Names, one of which the engine's certificate must have, instead of serverName: DNS names, *.example.com "
        "for one label, URIs such as spiffe://example.com/engine/*.",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=kept("tls.subjectAltNames", "DestinationRule"),
            gateway_api=kept("subjectAltNames", "BackendTLSPolicy"),
        ),
        max_length=64,
    )


SecretError: TypeAlias = Callable[[str, Origin, str], PolicyError | None]
"""The problem of the secret that a field names: its name, origin and the field; None where it is usable."""

POOL_SECRET: Final = "spec.tls.secret"  # noqa: S105 -- a field
LISTENER_SECRET: Final = "spec.listener.tls.secret"  # noqa: S105 -- a field


def unusable_secret(
    at: Origin, name: str, reason: str, known: Iterable[str], *, path: str = POOL_SECRET
) -> PolicyError:
    """The error of a pool or listener with an unusable secret; ``known`` are the usable ones."""
    usable = sorted(known)
    return PolicyError(
        code="SG043",
        origin=at,
        path=path,
        message=f"unusable secret {name}: {reason}",
        found=name,
        allowed=", ".join(usable) if usable else "no usable secret",
        hint=did_you_mean(name, usable)
        or f"put ca.crt, and tls.crt and tls.key for client certificates, into {name}/ in the --secrets folder",
    )


def is_uri(alt_name: str) -> bool:
    """Whether a required certificate name is a URI; otherwise it is a DNS name."""
    return "://" in alt_name


def expression(alt_name: str) -> str:
    """The regular expression for a whole certificate name, for RE2 and Python."""
    if not is_uri(alt_name):
        label, wild, rest = alt_name.rpartition("*.")
        return f"(?i)[^.]+\\.{re.escape(rest)}" if wild else f"(?i){re.escape(label + rest)}"
    below = alt_name.endswith("/**")
    parts = (alt_name.removesuffix("/**") if below else alt_name).split("*")
    return "[^/]*".join(map(re.escape, parts)) + ("/.+" if below else "")
