"""TLS from Istio's proxies to engines: ``trafficPolicy.tls`` of a pool's DestinationRule.

Its form follows from Istio's source (``pilot/pkg/networking/core/cluster_tls.go``):

* A rule with a Secret (``credentialName``) and no workload selector disables TLS for sidecars: they would send
plain
  text. So only gateways get a Secret; sidecars get the path of a file, and do not connect if it is not mounted.
* ``sni`` alone accepts any name of an engine. So ``subjectAltNames`` always lists the names.
* Names are compared literally: one with ``*`` matches only a certificate with the same ``*``.
* Without ``sni``, the engine is asked for the caller's host.

Whether a secret has a certificate that proxies show is not for policies to say, so the mode is SIMPLE; an engine
that wants one refuses the connection.
"""

from typing import Final

from istio.export.istio_objects import IstioTarget, Object
from istio.export.service_entries import is_ip
from policies.pool import EnginePool

MOUNTED_SECRETS: Final = "/etc/switchgear/secrets"
"""Where sidecars have the authorities of each secret: ``NAME/ca.crt``."""


def tls_settings(pool: EnginePool, place: IstioTarget) -> Object | None:
    """``trafficPolicy.tls`` of the pool; None where its engines speak plain HTTP."""
    tls = pool.spec.tls
    if tls is None:
        return None
    said: Object = {"mode": "SIMPLE"}
    if place.gateway:
        said["credentialName"] = tls.secret
    else:
        said["caCertificates"] = f"{MOUNTED_SECRETS}/{tls.secret}/ca.crt"
    if asked := shared_server_name(pool):
        said["sni"] = asked
    said["subjectAltNames"] = list(
        tls.subject_alt_names or ((tls.server_name,) if tls.server_name else host_names(pool))
    )
    return said


def shared_server_name(pool: EnginePool) -> str:
    """The server name common to all engines of the pool; empty if they differ."""
    if pool.spec.tls is not None and pool.spec.tls.server_name:
        return pool.spec.tls.server_name
    names = host_names(pool)
    alone = len(names) == 1 and pool.spec.kubernetes is None
    return names[0] if alone and all(one.address == names[0] for one in pool.spec.endpoints) else ""


def host_names(pool: EnginePool) -> tuple[str, ...]:
    """The host names that engines are given by, each once."""
    return tuple(dict.fromkeys(one.address for one in pool.spec.endpoints if not is_ip(one.address)))
