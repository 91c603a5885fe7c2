"""``trafficPolicy.tls`` of a DestinationRule: the ``tls`` of a pool.

Certificates are known by the name of a Secret, or by the path that the export writes; other paths are those of
Istio's own proxies.

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


def tls(part: Node, pool: Draft) -> None:
    """Say in ``pool`` how its engines are reached."""
    mode, unchecked = part.get("mode"), part.get("insecureSkipVerify")
    if mode is not None and mode.word == "DISABLE":
        part.take()
        return
    secret = _secret(part)
    if mode is None or mode.word not in {"SIMPLE", "MUTUAL"} or secret is None:
        part.refuse(_WHY)
        return
    if unchecked is not None and unchecked.value is not False:
        part.refuse("engines have to prove who they are")
        return
    if unchecked is not None:
        unchecked.take()
    mode.take()
    if mode.word == "MUTUAL":
        mode.change("the secret has to have tls.crt and tls.key")
    pool.put("tls.secret", secret)
    _names(part, pool)


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
