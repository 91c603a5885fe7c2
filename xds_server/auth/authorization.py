"""What a peer may be and do, given what its certificate or token proves. Pure: no file, no socket, no clock.

Whoever is not named may nothing. Of several rules the first that fits counts, so the order is the operator's.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.tls.identity_patterns import first_match, matches
from xds_server.auth.access_rules import Access, AdminRole, AdminRule, ProxyRule


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyGrant:
    """What a proxy may see: ``pools`` empty means all. ``identity`` is what its certificate proved."""

    identity: str
    pools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """Why a peer may not: one sentence for the log and for the peer, which says nothing of the rules."""

    reason: str
    kind: Literal["identity", "node"] = "identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Somebody on the admin port: the name for the audit log, and what may be done."""

    name: str
    role: AdminRole


def authorize_proxy(access: Access, identities: Sequence[str], node: str, zone: str) -> ProxyGrant | Denial:
    """What a proxy whose certificate proves ``identities`` may see as ``node`` in ``zone``.

    The first rule for one of its identities that also has its node id and zone counts.
    """
    named = False
    for rule in access.spec.proxies:
        identity = first_match(identities, rule.identity)
        if identity is None:
            continue
        named = True
        if _fits(rule, node, zone):
            return ProxyGrant(identity=identity, pools=frozenset(rule.pools))
    shown = ", ".join(identities) or "nobody"
    if not named:
        return Denial(reason=f"{shown} may not connect as a proxy")
    return Denial(reason=f"{shown} may not be node {node!r} in zone {zone!r}", kind="node")


def expected_proxy_grant(access: Access, node: str, zone: str) -> ProxyGrant | Denial:
    """The same of a proxy that is not here: by the first rule for this node and zone, whoever it is for."""
    for rule in access.spec.proxies:
        if _fits(rule, node, zone):
            return ProxyGrant(identity="", pools=frozenset(rule.pools))
    return Denial(reason=f"nobody may be node {node!r} in zone {zone!r}", kind="node")


def principal_of(
    access: Access, identities: Sequence[str], token: str, tokens: Mapping[AdminRule, str]
) -> Principal | None:
    """Who asks on the admin port, by certificate or bearer token; None for somebody unknown.

    ``tokens`` are those of rules with a file, as they are now. An empty one is nobody's.
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
    # Whatever somebody sends has bytes: a header that is no UTF-8 arrives with halves of surrogate pairs.
    return token.encode(errors="surrogatepass")


def _fits(rule: ProxyRule, node: str, zone: str) -> bool:
    return any(matches(one, node) for one in rule.nodes) and (not rule.zones or zone in rule.zones)
