"""Resources in Envoy's JSON form, decoded from the bytes sent to proxies.

Decoding the bytes, not their source, shows what is on the wire. Secrets show their name and the SHA-256 of their
public parts (certificates), never a key.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast

import betterproto2
from betterproto2 import Casing
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.core.v3 import TypedExtensionConfig
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import Secret
from envoy_data_plane.envoy.service.runtime.v3 import Runtime

from xds_server.model.snapshot import Resource, Snapshot
from xds_server.model.type_urls import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    PUSH_ORDER,
    ROUTE,
    RUNTIME,
    SECRET,
    SHORT_NAMES,
)

_CLASSES: Final[Mapping[str, type[betterproto2.Message]]] = MappingProxyType(
    {
        CLUSTER: Cluster,
        ENDPOINT: ClusterLoadAssignment,
        LISTENER: Listener,
        ROUTE: RouteConfiguration,
        RUNTIME: Runtime,
        EXTENSION: TypedExtensionConfig,
    }
)


MOST_CHARACTERS: Final = 16 * 1024 * 1024
"""Cache limit in characters; the endpoints of a thousand engines take a quarter of a million."""


class ResourceDecoder:
    """Decodes resources and caches the result, since most proxies get equal resources.

    Not thread-safe.
    """

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._most = most_characters
        self._known: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        self._characters = 0

    def read(self, served: Snapshot) -> str:
        """JSON list of the resources of a snapshot, in push order, then by name.

        ``content`` is null where it is secret. Slow without cache: a thousand endpoints take seconds.
        """
        resources = (served.of(type_url)[name] for type_url in PUSH_ORDER for name in sorted(served.of(type_url)))
        return f"[{', '.join(map(self._resource, resources))}]"

    def _resource(self, one: Resource) -> str:
        head = {
            "type": SHORT_NAMES[one.type_url],
            "name": one.name,
            "version": one.version,
            "origins": one.origins,
        }
        return f'{_dumps(head)[:-1]}, "content": {self._content(one)}}}'

    def _content(self, one: Resource) -> str:
        # Versions are content hashes, and the name is part of the content.
        key = (one.type_url, one.name, one.version)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        message = _CLASSES.get(one.type_url)
        text = _dumps(_public(one) if message is None else _as_json(message.parse(one.value)))
        self._known[key] = text
        self._characters += len(text)
        while self._characters > self._most:
            self._characters -= len(self._known.popitem(last=False)[1])
        return text


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _public(one: Resource) -> Mapping[str, Any] | None:
    """Public parts of a secret, in the form that ``xds_server.diagnosis.envoy_dump`` reads from an Envoy."""
    if one.type_url != SECRET:
        return None
    secret = Secret.parse(one.value)
    if secret.tls_certificate is not None and secret.tls_certificate.certificate_chain is not None:
        chain = secret.tls_certificate.certificate_chain.inline_bytes or b""
        return {"certificate_chain_sha256": hashlib.sha256(chain).hexdigest()}
    if secret.validation_context is not None and secret.validation_context.trusted_ca is not None:
        trusted = secret.validation_context.trusted_ca.inline_bytes or b""
        return {"trusted_ca_sha256": hashlib.sha256(trusted).hexdigest()}
    return None


def _as_json(message: betterproto2.Message) -> dict[str, Any]:
    # betterproto2's snake case turns consecutive_5xx and http2 into names that Envoy rejects.
    return message.to_dict(casing=cast("Casing", lambda field: field))
