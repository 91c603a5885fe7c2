"""TLS from Istio's proxies to engines: ``trafficPolicy.tls`` of a pool's DestinationRule.

What Istio makes of it was read in its source (``pilot/pkg/networking/core/cluster_tls.go``), and decides its form:

* A rule that names a Secret (``credentialName``) and selects no workloads is no TLS at all for sidecars: they
  would send plain text. So only gateways are given one, and sidecars the path of a file; where nobody mounted it,
  no connection is made.
* ``sni`` alone lets an engine prove any name. So names are always said, in ``subjectAltNames``.
* Names are compared as they are. One with ``*`` fits a certificate that has it with the ``*`` and no other.
* Without ``sni`` the host that callers ask for is asked of the engine.

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
    """The one name that is asked of all engines of the pool; empty where each has its own."""
    if pool.spec.tls is not None and pool.spec.tls.server_name:
        return pool.spec.tls.server_name
    names = host_names(pool)
    alone = len(names) == 1 and pool.spec.kubernetes is None
    return names[0] if alone and all(one.address == names[0] for one in pool.spec.endpoints) else ""


def host_names(pool: EnginePool) -> tuple[str, ...]:
    """The host names that engines are given by, each once."""
    return tuple(dict.fromkeys(one.address for one in pool.spec.endpoints if not is_ip(one.address)))
