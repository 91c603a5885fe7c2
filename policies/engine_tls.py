"""How proxies speak TLS to the engines of a pool: which certificates, and whose name an engine has to prove.

A policy names certificates and never a file: who may write policies must not be able to make the control plane
send whatever it can read to a proxy. Where the named certificates are is said once, by ``serve --secrets DIR``.
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
    """The text when it is a DNS name that TLS can ask for; ValueError says what is allowed."""
    if "*" in value or _ADDRESS.fullmatch(value) or not _DNS.fullmatch(value):
        msg = f"{value!r} is no DNS name: TLS asks for names such as engine.example.com, never for an IP address"
        raise ValueError(msg)
    return value


def parse_alt_name(value: str) -> str:
    """The text when it says which names of a certificate do; ValueError says what is allowed."""
    if "://" in value:
        if not _URI.fullmatch(value):
            msg = (
                f"{value!r} is no URI: write spiffe://domain/path; * is anything but a slash, /** everything below"
            )
            raise ValueError(msg)
        return value
    if _ADDRESS.fullmatch(value) or not _DNS.fullmatch(value):
        msg = (
            f"{value!r} is neither a DNS name (engine.example.com, *.example.com) nor a URI (spiffe://domain/path)"
        )
        raise ValueError(msg)
    return value


ServerName = Annotated[str, Field(min_length=1, max_length=253), AfterValidator(parse_server_name)]
"""A DNS name that a client says in TLS (SNI)."""

AltName = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(parse_alt_name)]
"""A DNS name or URI of a certificate; ``*.x`` is one label before ``.x``, ``*`` in a URI anything but a slash."""


class EngineTls(Spec):
    """TLS from proxies to engines, and from the control plane that asks them how they are."""

    secret: Name = documented_field(
        ...,
        "Name of the certificates: a folder below `serve --secrets DIR` with ca.crt, and tls.crt and tls.key "
        "where proxies have to prove who they are.",
        targets=FieldTargets(
            live=Xds.SDS | Xds.CDS,
            istio=approximated(
                "credentialName, of a Secret beside the gateway's proxies; sidecars are told of a "
                "file that has to be mounted, /etc/switchgear/secrets/NAME/ca.crt; mode is SIMPLE, "
                "and has to be MUTUAL where engines ask for certificates",
                "DestinationRule",
            ),
            gateway_api=approximated(
                "caCertificateRefs, of a ConfigMap of this name with ca.crt; what proxies show is "
                "said at the Gateway, by hand",
                "BackendTLSPolicy",
            ),
        ),
    )
    server_name: ServerName | None = documented_field(
        None,
        "Name asked of the engine (SNI), and looked for in its certificate; its host name when absent.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.CDS,
            istio=kept("tls.sni, and tls.subjectAltNames where the pool says none", "DestinationRule"),
            gateway_api=kept("hostname", "BackendTLSPolicy"),
        ),
    )
    subject_alt_names: tuple[AltName, ...] = documented_field(
        (),
        "Names of which the engine's certificate has to have one, instead of serverName: DNS names, *.example.com "
        "for one label before it, URIs such as spiffe://example.com/engine/*.",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=kept("tls.subjectAltNames", "DestinationRule"),
            gateway_api=kept("subjectAltNames", "BackendTLSPolicy"),
        ),
        max_length=64,
    )


SecretError: TypeAlias = Callable[[str, Origin], PolicyError | None]
"""Why the secret of this name, which a pool names at this place, cannot be used; None where it can."""


def unusable_secret(at: Origin, name: str, reason: str, known: Iterable[str]) -> PolicyError:
    """The pool at this place names a secret that cannot be used, for this reason; ``known`` are those that can."""
    usable = sorted(known)
    return PolicyError(
        code="SG043",
        origin=at,
        path="spec.tls.secret",
        message=f"the secret {name} cannot be used: {reason}",
        found=name,
        allowed=", ".join(usable) if usable else "no secret can be used now",
        hint=did_you_mean(name, usable)
        or f"put ca.crt, and tls.crt and tls.key where proxies show one, into {name}/ in the folder of --secrets",
    )


def is_uri(alt_name: str) -> bool:
    """Whether a name that was asked of a certificate is a URI; it is a DNS name otherwise."""
    return "://" in alt_name


def expression(alt_name: str) -> str:
    """The regular expression that a whole name of a certificate has to fit; the same to RE2 and to Python."""
    if not is_uri(alt_name):
        label, wild, rest = alt_name.rpartition("*.")
        return f"(?i)[^.]+\\.{re.escape(rest)}" if wild else f"(?i){re.escape(label + rest)}"
    below = alt_name.endswith("/**")
    parts = (alt_name.removesuffix("/**") if below else alt_name).split("*")
    return "[^/]*".join(map(re.escape, parts)) + ("/.+" if below else "")
