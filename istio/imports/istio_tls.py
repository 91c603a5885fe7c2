"""``trafficPolicy.tls`` of a DestinationRule: the ``tls`` of a pool.

Certificates are known by the name of a Secret, or by the path that the export writes; other paths are those of
Istio's own proxies. A pool whose TLS cannot be said is left out: without it requests would go in plain text.

Source: istio.io, "ClientTLSSettings"; ``pilot/pkg/networking/core/cluster_tls.go``.
"""

import re
from typing import Final

from istio.export.tls import MOUNTED_SECRETS
from istio.imports.draft import Draft, Said
from istio.imports.reading import Node
from istio.imports.values import text

_MOUNTED: Final = re.compile(rf"{re.escape(MOUNTED_SECRETS)}/([^/]+)/ca\.crt")
_WHY: Final = "engines are known by the certificates of a secret: say credentialName, and mode SIMPLE or MUTUAL"
_OF_THE_MESH: Final = (
    "certificates of the mesh are its sidecars': requests go in plain text, but where one stands beside the Envoy"
)
_NOT_TO_ENGINES: Final = frozenset({"", "DISABLE", "ISTIO_MUTUAL"})
"""Modes in which engines themselves speak no TLS; the first where none is said."""


def tls(part: Node, pool: Draft) -> None:
    """Say in ``pool`` how its engines are reached."""
    mode, unchecked = part.get("mode"), part.get("insecureSkipVerify")
    if mode is not None and mode.word == "DISABLE":
        part.take()
        return
    if mode is not None and mode.word == "ISTIO_MUTUAL":
        part.refuse(_OF_THE_MESH)
        return
    secret = _secret(part)
    if mode is None or mode.word not in {"SIMPLE", "MUTUAL"} or secret is None:
        _leave_out(part, pool, _WHY)
        return
    if unchecked is not None and unchecked.value is not False:
        _leave_out(part, pool, "engines have to prove who they are")
        return
    if unchecked is not None:
        unchecked.take()
    mode.take()
    if mode.word == "MUTUAL":
        mode.change("the secret has to have tls.crt and tls.key")
    pool.put("tls.secret", secret)
    _names(part, pool)


def port_tls(settings: Node, pool: Draft) -> None:
    """Leave out a pool one of whose ports alone is reached by TLS: a policy holds for all of them."""
    for one in settings.items():
        mode = one.at("tls", "mode")
        if one.get("tls") is not None and (mode is None or mode.word not in _NOT_TO_ENGINES):
            _leave_out(settings, pool, "a policy holds for all of a pool's engines, whatever their port")
            return


def _leave_out(part: Node, pool: Draft, why: str) -> None:
    part.refuse(f"EnginePool {pool.name} is left out, for requests would go to it in plain text: {why}")
    pool.left_out = True


def _secret(part: Node) -> Said | None:
    """The name of the secret; the node is taken where it says one."""
    for name, pattern in (("credentialName", None), ("caCertificates", _MOUNTED)):
        node = part.get(name)
        if node is None or not node.word:
            continue
        found = pattern.fullmatch(node.word) if pattern is not None else None
        if pattern is None or found is not None:
            node.change("`serve --secrets DIR` has to have a folder of this name with ca.crt")
            return Said(value=found[1] if found is not None else node.word, node=node)
    return None


def _names(part: Node, pool: Draft) -> None:
    sni, listed = part.get("sni"), part.get("subjectAltNames")
    asked = text(sni)
    names = [said for one in (listed.items() if listed is not None else ()) if (said := text(one)) is not None]
    if sni is not None and asked is not None:
        pool.put("tls.serverName", Said(value=asked, node=sni))
        if not names:
            sni.change("engines have to prove this name; in Istio any name does without subjectAltNames")
    if listed is not None and names and names != [asked]:
        pool.put("tls.subjectAltNames", Said(value=tuple(names), node=listed))
        if any("*" in name for name in names):
            listed.change("* stands for any one label here, and for itself in Istio")
