"""Encoded responses, shared between streams.

All streams with the same due content in a push also get the same nonce, so a thousand streams write one bytes
object.
"""

from typing import Final, TypeAlias

from engine.bounded_dict import BoundedDict
from xds_server.model.snapshot import Resource
from xds_server.wire.responses import delta_chunk, delta_response, sotw_chunk, sotw_response
from xds_server.xds.messages import NAME_BYTES, Response, XdsVariant

CACHED_RESPONSES: Final = 64
"""Cached responses: a push has at most one per type, view and variant, and streams lag by one or two."""

LARGE_REMOVED_BYTES: Final = 128 * 1024
"""From here on a response is large: ``NAME_BYTES`` and the characters of each removed name, so 600 names. They are
names that one peer made up, sent to it alone, or a large fleet that leaves, sent to all proxies.
"""

LARGE_RESPONSES: Final = 2
"""Cached large responses, of up to 4 MB each."""

_Encoded: TypeAlias = BoundedDict[tuple[object, ...], tuple[tuple[Resource, ...], bytes]]


class ResponseCache:
    """Encodes responses and shares equal results; ``identifier``: our name for the peer."""

    def __init__(self, identifier: str = "") -> None:
        self._identifier = identifier
        # The entry also holds the resources, so that their ids are not reused.
        self._encoded: _Encoded = BoundedDict(CACHED_RESPONSES)
        self._large: _Encoded = BoundedDict(LARGE_RESPONSES)

    def encode(self, response: Response) -> bytes:
        """The serialised (Delta)DiscoveryResponse."""
        removed_bytes = NAME_BYTES * len(response.removed) + sum(map(len, response.removed))
        kept = self._encoded if removed_bytes < LARGE_REMOVED_BYTES else self._large
        key = (
            response.mode,
            response.type_url,
            response.nonce,
            response.version,
            response.removed,
            *map(id, response.resources),
        )
        if known := kept.get(key):
            return known[1]
        data = _encode(response, self._identifier)
        kept[key] = (response.resources, data)
        return data


def _encode(response: Response, identifier: str) -> bytes:
    if response.mode is XdsVariant.SOTW:
        return sotw_response(
            response.type_url,
            response.version,
            response.nonce,
            [sotw_chunk(item.type_url, item.value) for item in response.resources],
            control_plane=identifier,
        )
    return delta_response(
        response.type_url,
        response.nonce,
        response.version,
        [delta_chunk(item.name, item.version, item.type_url, item.value) for item in response.resources],
        response.removed,
        control_plane=identifier,
    )
