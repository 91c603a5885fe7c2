"""Encodes translated items into a snapshot: once each, versioned by content, cached while unchanged.

Separate from ``snapshot``, so that streams need not know about encoding.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from xds_server.model.snapshot import (
    Resource,
    ResourcePart,
    ResourceParts,
    Snapshot,
    content_hash,
    resource,
    snapshot,
)
from xds_server.translate.translated_resource import TranslatedResource
from xds_server.wire.assignment import AssignmentSpec
from xds_server.wire.eds import AssignmentEncoder
from xds_server.wire.encode import encode
from xds_server.wire.route_parts import route_field, split_routes


class Assembler:
    """Encodes items of any number of views; an item encoded before costs one look-up."""

    def __init__(self, encoder: Callable[[Any], bytes] = encode) -> None:
        """Start with an empty cache; ``encoder`` writes messages other than assignments.

        Resources have parts only in the wire format.
        """
        self._encode = encoder
        self._splits = encoder is encode
        self._assignments = AssignmentEncoder()
        self._encoded: WeakKeyDictionary[TranslatedResource, Resource] = WeakKeyDictionary()

    def assemble(self, items: Iterable[TranslatedResource]) -> Snapshot:
        """The snapshot of one view's items."""
        return snapshot(self.resource(item) for item in items)

    def resource(self, item: TranslatedResource) -> Resource:
        """One item, encoded; the same object for the same item."""
        known = self._encoded.get(item)
        if known is None:
            value = self._bytes(item)
            parts = self._parts(item, value) if item.parts and self._splits else None
            known = resource(item.type_url, item.name, value, item.origins, parts)
            self._encoded[item] = known
        return known

    def retain(self, pools: Collection[str]) -> None:
        """Drop cached endpoints of other pools."""
        self._assignments.retain(pools)

    def _parts(self, item: TranslatedResource, value: bytes) -> ResourceParts:
        frame, groups = split_routes(value, [part.count for part in item.parts])
        return ResourceParts(
            frame=frame,
            parts=tuple(
                ResourcePart(
                    name=part.name,
                    value=routes,
                    content=content_hash(routes),
                    origins=part.origins,
                    rank=part.rank,
                    instead=route_field(self._encode(part.instead)),
                )
                for part, routes in zip(item.parts, groups, strict=True)
            ),
        )

    def _bytes(self, item: TranslatedResource) -> bytes:
        if isinstance(item.message, AssignmentSpec):
            return self._assignments.encode(item.message)
        return self._encode(item.message)


def assemble(items: Iterable[TranslatedResource]) -> Snapshot:
    """The snapshot of these items, without a cache."""
    return Assembler().assemble(items)
