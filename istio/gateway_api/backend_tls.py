"""BackendTLSPolicies: TLS from a gateway to the engines of a pool, one for each backend that stands for it.

A backend without one would get plain text, so each has one even if not all names fit: an engine must then prove a
listed name, or it is refused.

* Authorities are a ConfigMap with the secret's name and ``ca.crt``: the one kind that every gateway reads.
* ``hostname`` is required and sent to every engine. If the engines' names differ, it is the backend's own name,
and
  theirs are in ``subjectAltNames`` (at most five).
* The Gateway sets the proxies' own certificate.

Source: gateway.networking.k8s.io_backendtlspolicies.yaml; GEP-1897.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from istio.export.destination_tls import host_names, shared_server_name
from istio.export.istio_objects import Object, istio_object, object_name
from istio.gateway_api.backends import GatewayBackend
from istio.gateway_api.gateway_objects import ROUTES, object_reference
from policies.engine_tls import EngineTls, is_uri
from policies.model import PolicySet
from policies.pool import EnginePool

MOST_NAMES: Final = 5
_LONGEST_NAME: Final = 253
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTlsNames:
    """What is asked of an engine, and what it has to prove: ``hostname`` itself where ``alternatives`` are none.

    ``left_out`` are those that the Gateway API cannot say.
    """

    hostname: str
    alternatives: tuple[str, ...]
    left_out: tuple[str, ...]


def backend_tls(name: str, of: tuple[GatewayBackend, ...], policies: PolicySet) -> Iterator[Object]:
    """The BackendTLSPolicies of the pool of this name, whose backends are ``of``; none where it has no TLS."""
    pool = policies.pools[name]
    if pool.spec.tls is None:
        return
    for backend in of:
        said = backend_tls_names(pool, pool.spec.tls, backend)
        validation: Object = {
            "caCertificateRefs": [object_reference("", "ConfigMap", pool.spec.tls.secret)],
            "hostname": said.hostname,
        }
        if said.alternatives:
            validation["subjectAltNames"] = [_alternative(one) for one in said.alternatives]
        yield istio_object(
            "BackendTLSPolicy",
            object_name(name, backend.kind.lower(), backend.name),
            backend.namespace,
            {
                "targetRefs": [object_reference(backend.group, backend.kind, backend.name)],
                "validation": validation,
            },
            policies=policies,
            of=[f"EnginePool/{name}"],
            version=f"{ROUTES}/v1",
        )


def backend_tls_names(pool: EnginePool, tls: EngineTls, backend: GatewayBackend) -> BackendTlsNames:
    """The names that a gateway asks of a backend's engines, and takes from them."""
    asked = shared_server_name(pool).lower()
    hostname = asked if _sayable(asked) else f"{backend.name}.{backend.namespace}.svc"
    wanted = tls.subject_alt_names or (() if hostname == asked else host_names(pool))
    plain = [one if is_uri(one) else one.lower().rstrip(".") for one in wanted]
    sayable = list(dict.fromkeys(one for one in plain if _sayable(one)))[:MOST_NAMES]
    return BackendTlsNames(
        hostname=hostname,
        alternatives=tuple(sayable),
        left_out=tuple(one for one, said in zip(wanted, plain, strict=True) if said not in sayable),
    )


def _sayable(name: str) -> bool:
    if not name or len(name) > _LONGEST_NAME:
        return False
    return is_uri(name) or _HOST.fullmatch(name) is not None


def _alternative(name: str) -> Object:
    return {"type": "URI", "uri": name} if is_uri(name) else {"type": "Hostname", "hostname": name}
