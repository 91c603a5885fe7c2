"""What a peer may be and do, given what its certificate or token proves. Pure: no file, no socket, no clock.

Whoever is not named may nothing. Of several rules the first that fits counts, so the order is the operator's.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.tls.patterns import fitting, matches
from xds_server.access.model import Access, AdminRole, AdminRule, ProxyRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a proxy may see: ``pools`` empty means all. ``identity`` is what its certificate proved."""

    identity: str
    pools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a peer may not: one sentence for the log and for the peer, which says nothing of the rules."""

    reason: str
    kind: Literal["identity", "node"] = "identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody on the admin port: the name for the audit log, and what may be done."""

    name: str
    role: AdminRole


def proxy_allowed(access: Access, identities: Sequence[str], node: str, zone: str) -> Allowed | Refused:
    """What a proxy whose certificate proves ``identities`` may see as ``node`` in ``zone``.

    The first rule for one of its identities that also has its node id and zone counts.
    """
    named = False
    for rule in access.spec.proxies:
        identity = fitting(identities, rule.identity)
        if identity is None:
            continue
        named = True
        if _fits(rule, node, zone):
            return Allowed(identity=identity, pools=frozenset(rule.pools))
    shown = ", ".join(identities) or "nobody"
    if not named:
        return Refused(reason=f"{shown} may not connect as a proxy")
    return Refused(reason=f"{shown} may not be node {node!r} in zone {zone!r}", kind="node")


def proxy_expected(access: Access, node: str, zone: str) -> Allowed | Refused:
    """The same of a proxy that is not here: by the first rule for this node and zone, whoever it is for."""
    for rule in access.spec.proxies:
        if _fits(rule, node, zone):
            return Allowed(identity="", pools=frozenset(rule.pools))
    return Refused(reason=f"nobody may be node {node!r} in zone {zone!r}", kind="node")


def caller_of(
    access: Access, identities: Sequence[str], token: str, tokens: Mapping[AdminRule, str]
) -> Caller | None:
    """Who asks on the admin port, by certificate or bearer token; None for somebody unknown.

    ``tokens`` are those of rules with a file, as they are now. An empty one is nobody's.
    """
    for rule in access.spec.admin:
        if rule.identity is not None:
            identity = fitting(identities, rule.identity)
            if identity is not None:
                return Caller(name=rule.name or identity, role=rule.role)
        elif token and hmac.compare_digest(_bytes(tokens.get(rule, "")), _bytes(token)):
            return Caller(name=rule.name or f"token of {rule.token_file}", role=rule.role)
    return None


def _bytes(token: str) -> bytes:
    # Whatever somebody sends has bytes: a header that is no UTF-8 arrives with halves of surrogate pairs.
    return token.encode(errors="surrogatepass")


def _fits(rule: ProxyRule, node: str, zone: str) -> bool:
    return any(matches(one, node) for one in rule.nodes) and (not rule.zones or zone in rule.zones)
