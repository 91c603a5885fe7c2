"""Resources with their content, in Envoy's JSON form, read back from the bytes that proxies are sent.

From the bytes and not from what they were made of: this is what is on the wire. Of secrets there are names, and
SHA-256 of what is public in them: with what engines and proxies prove themselves, never a key.
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
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import Secret
from envoy_data_plane.envoy.service.runtime.v3 import Runtime

from xds_server.model.snapshot import Resource, Snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, PUSH_ORDER, ROUTE, RUNTIME, SECRET, SHORT_NAMES

_CLASSES: Final[Mapping[str, type[betterproto2.Message]]] = MappingProxyType(
    {
        CLUSTER: Cluster,
        ENDPOINT: ClusterLoadAssignment,
        LISTENER: Listener,
        ROUTE: RouteConfiguration,
        RUNTIME: Runtime,
    }
)


MOST_CHARACTERS: Final = 16 * 1024 * 1024
"""Of what is remembered; the endpoints of a thousand engines have a quarter of a million."""


class ResourceDecoder:
    """Reads resources back, and remembers what it read: most proxies are served the same as others, and as before.

    Not for two threads at once.
    """

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._most = most_characters
        self._known: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        self._characters = 0

    def read(self, served: Snapshot) -> str:
        """A JSON list of the resources of a snapshot, in the order types are pushed in, then by name.

        ``content`` is null where it may not be shown. Slow the first time: a thousand endpoints take seconds.
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
        # Versions are hashes of the content, and names are a part of it.
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
