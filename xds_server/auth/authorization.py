"""Rights of a peer, given the identities its certificate or token proves. Pure: no I/O, no clock.

A peer without a rule has no rights. The first matching rule counts, so operators control the order.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.tls.identity_patterns import first_match, matches
from xds_server.auth.access_rules import Access, AdminRole, AdminRule, ProxyRule


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyGrant:
    """What a proxy may see; empty ``pools`` means all. ``identity``: proven by its certificate."""

    identity: str
    pools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """Reason of a refusal: one sentence for log and peer that does not reveal the rules."""

    reason: str
    kind: Literal["identity", "node"] = "identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A user of the admin port: name for the audit log, and role."""

    name: str
    role: AdminRole


def authorize_proxy(access: Access, identities: Sequence[str], node: str, zone: str) -> ProxyGrant | Denial:
    """Grant for a proxy that connects as ``node`` in ``zone`` with proven ``identities``.

    The first rule that matches identity, node id and zone counts.
    """
    named = False
    for rule in access.spec.proxies:
        identity = first_match(identities, rule.identity)
        if identity is None:
            continue
        named = True
        if _fits(rule, node, zone):
            return ProxyGrant(identity=identity, pools=frozenset(rule.pools))
    shown = ", ".join(identities) or "a peer without certificate"
    if not named:
        return Denial(reason=f"{shown} may not connect as a proxy")
    return Denial(reason=f"{shown} may not be node {node!r} in zone {zone!r}", kind="node")


def expected_proxy_grant(access: Access, node: str, zone: str) -> ProxyGrant | Denial:
    """Grant for a proxy that is not connected: the first rule for this node and zone, whatever its identity."""
    for rule in access.spec.proxies:
        if _fits(rule, node, zone):
            return ProxyGrant(identity="", pools=frozenset(rule.pools))
    return Denial(reason=f"no rule allows node {node!r} in zone {zone!r}", kind="node")


def principal_of(
    access: Access, identities: Sequence[str], token: str, tokens: Mapping[AdminRule, str]
) -> Principal | None:
    """Admin user behind a certificate or bearer token; None if unknown.

    ``tokens``: current tokens of rules with a file; an empty token matches no user.
    """
    for rule in access.spec.admin:
        if rule.identity is not None:
            identity = first_match(identities, rule.identity)
            if identity is not None:
                return Principal(name=rule.name or identity, role=rule.role)
        elif token and hmac.compare_digest(_bytes(tokens.get(rule, "")), _bytes(token)):
            return Principal(name=rule.name or f"token of {rule.token_file}", role=rule.role)
    return None


def _bytes(token: str) -> bytes:
    # A header that is not UTF-8 arrives with lone surrogates; encode them, too.
    return token.encode(errors="surrogatepass")


def _fits(rule: ProxyRule, node: str, zone: str) -> bool:
    return any(matches(one, node) for one in rule.nodes) and (not rule.zones or zone in rule.zones)
