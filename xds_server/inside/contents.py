"""Resources with their content, in Envoy's JSON form, read back from the bytes that proxies are sent.

From the bytes and not from what they were made of: this is what is on the wire. Of secrets there are names, and
SHA-256 of what is public in them: with what engines and proxies prove themselves, never a key.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

import betterproto2
from betterproto2 import Casing
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import Secret
from envoy_data_plane.envoy.service.runtime.v3 import Runtime

from xds_server.snapshot import Resource, Snapshot
from xds_server.type_urls import CLUSTER, ENDPOINT, LISTENER, PUSH_ORDER, ROUTE, RUNTIME, SECRET, SHORT_NAMES

_CLASSES: Final[Mapping[str, type[betterproto2.Message]]] = MappingProxyType(
    {
        CLUSTER: Cluster,
        ENDPOINT: ClusterLoadAssignment,
        LISTENER: Listener,
        ROUTE: RouteConfiguration,
        RUNTIME: Runtime,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceContent:
    """One resource; ``content`` is None where it may not be shown."""

    type: str
    name: str
    version: str
    origins: tuple[str, ...]
    content: Mapping[str, Any] | None


def contents(served: Snapshot) -> tuple[ResourceContent, ...]:
    """Every resource of a snapshot, in the order types are pushed in, then by name. Slow for large snapshots."""
    return tuple(
        _content(served.of(type_url)[name]) for type_url in PUSH_ORDER for name in sorted(served.of(type_url))
    )


def _content(one: Resource) -> ResourceContent:
    message = _CLASSES.get(one.type_url)
    return ResourceContent(
        type=SHORT_NAMES[one.type_url],
        name=one.name,
        version=one.version,
        origins=one.origins,
        content=_public(one) if message is None else _as_json(message.parse(one.value)),
    )


def _public(one: Resource) -> Mapping[str, Any] | None:
    """A secret as ``xds_server.diagnosis.envoy_dump`` reads it from an Envoy."""
    if one.type_url != SECRET:
        return None
    said = Secret.parse(one.value)
    if said.tls_certificate is not None and said.tls_certificate.certificate_chain is not None:
        chain = said.tls_certificate.certificate_chain.inline_bytes or b""
        return {"certificate_chain_sha256": hashlib.sha256(chain).hexdigest()}
    if said.validation_context is not None and said.validation_context.trusted_ca is not None:
        trusted = said.validation_context.trusted_ca.inline_bytes or b""
        return {"trusted_ca_sha256": hashlib.sha256(trusted).hexdigest()}
    return None


def _as_json(message: betterproto2.Message) -> dict[str, Any]:
    # betterproto2's own snake case turns consecutive_5xx and http2 into names that Envoy does not know.
    return message.to_dict(casing=cast("Casing", lambda field: field))
