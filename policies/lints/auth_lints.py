"""Lint: checks of callers that let others in, or refuse all callers."""

import ipaddress
from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import SetRule
from policies.listener import Listener
from policies.model import PolicySet
from policies.quantity import is_ip


def _listeners(policies: PolicySet) -> Iterator[tuple[str, Listener]]:
    """Listeners with the name of their first route, which shows their findings."""
    first: dict[int, str] = {}
    for name, route in policies.routes.items():
        if first.setdefault(route.spec.listener.port, name) == name:
            yield name, route.spec.listener


def _finding(policies: PolicySet, code: str, route: str, field: str, message: str, *, fix: str) -> Finding:
    path = f"spec.{field}"
    return Finding(
        code=code,
        origin=policies.origin("ModelRoute", route, path),
        path=path,
        message=f"route {route}: {message}",
        fix=fix,
    )


def _plain_keys(policies: PolicySet) -> Iterator[Finding]:
    for name, listener in _listeners(policies):
        for number, provider in enumerate(listener.jwt.providers if listener.jwt is not None else ()):
            if provider.remote_jwks is not None and provider.remote_jwks.uri.startswith("http:"):
                yield _finding(
                    policies,
                    "SG190",
                    name,
                    f"listener.jwt.providers[{number}].remoteJwks.uri",
                    f"the keys of {provider.name} come over plain HTTP: who changes the answer makes valid tokens",
                    fix="use https",
                )


def _any_audience(policies: PolicySet) -> Iterator[Finding]:
    for name, listener in _listeners(policies):
        for number, provider in enumerate(listener.jwt.providers if listener.jwt is not None else ()):
            if not provider.audiences:
                yield _finding(
                    policies,
                    "SG191",
                    name,
                    f"listener.jwt.providers[{number}]",
                    f"every token of {provider.name} is accepted, also those for other services",
                    fix="set audiences to the one that the issuer writes for these routes",
                )


def _plain_tokens(policies: PolicySet) -> Iterator[Finding]:
    for name, listener in _listeners(policies):
        if listener.jwt is not None and listener.tls is None and not listener.trusted_hops:
            yield _finding(
                policies,
                "SG192",
                name,
                "listener.jwt",
                f"port {listener.port} takes tokens in plain text: who reads one can use it",
                fix="set listener.tls, or trustedHops if a load balancer ends TLS",
            )


def _open_on_failure(policies: PolicySet) -> Iterator[Finding]:
    for name, listener in _listeners(policies):
        if listener.ext_auth is not None and listener.ext_auth.failure_mode_allow:
            yield _finding(
                policies,
                "SG193",
                name,
                "listener.extAuth.failureModeAllow",
                "callers need no authorization while the service is lost",
                fix="remove failureModeAllow, and run the service with a spare",
            )


def _unreachable(policies: PolicySet) -> Iterator[Finding]:
    for name, listener in _listeners(policies):
        for one in listener.external_services():
            address = one.service.address
            if is_ip(address) and not _can_be_reached(address):
                yield _finding(
                    policies,
                    "SG194",
                    name,
                    f"listener.{one.field}",
                    f"Envoys cannot connect to {address}",
                    fix="write the address or host name of the service",
                )


def _can_be_reached(address: str) -> bool:
    known = ipaddress.ip_address(address)
    return not (known.is_unspecified or known.is_multicast or str(known) == "255.255.255.255")


def _public_without_effect(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        listener = route.spec.listener
        if route.spec.public and listener.jwt is None and listener.ext_auth is None:
            yield _finding(
                policies,
                "SG195",
                name,
                "public",
                "its listener checks no callers, so public has no effect",
                fix="remove public, or set listener.jwt or listener.extAuth",
            )


def _believed_header(policies: PolicySet) -> Iterator[Finding]:
    for name, listener in _listeners(policies):
        tenants = listener.tenants
        if (
            tenants is not None
            and tenants.trust_header
            and tenants.header not in listener.proven_headers()
            and listener.ext_auth is None
            and not listener.trusted_hops
        ):
            yield _finding(
                policies,
                "SG196",
                name,
                "listener.tenants.trustHeader",
                f"callers that reach port {listener.port} directly choose their tenant with {tenants.header}",
                fix="write the header from a claim, or set trustedHops and let only that proxy reach the port",
            )


AUTH_RULES: Final[tuple[SetRule, ...]] = (
    _plain_keys,
    _any_audience,
    _plain_tokens,
    _open_on_failure,
    _unreachable,
    _public_without_effect,
    _believed_header,
)
