"""Encodes translated items into a snapshot: once each, versioned by content, cached while unchanged.

Separate from ``snapshot``, so that streams need not know about encoding.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakKeyDictionary

from engine.bounded_dict import BoundedDict
from xds_server.model.memo import Memo
from xds_server.model.snapshot import (
    Resource,
    ResourcePart,
    ResourceParts,
    Snapshot,
    bound_to_clusters,
    content_hash,
    resource,
    snapshot,
)
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.translate.translated_resource import TranslatedResource, TypeGroup
from xds_server.wire.assignment import AssignmentSpec
from xds_server.wire.eds import AssignmentEncoder
from xds_server.wire.encode import encode
from xds_server.wire.route_parts import route_field, split_routes

CACHED_GROUPS: Final = 64
"""Types by content, to share those that several views have."""


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
        self._named: BoundedDict[TypeGroup, Mapping[str, Resource]] = BoundedDict(CACHED_GROUPS)

    def assemble(self, items: Iterable[TranslatedResource]) -> Snapshot:
        """The snapshot of one view's items."""
        return snapshot(self.resource(item) for item in items)

    def assemble_groups(self, view: Hashable, groups: tuple[TypeGroup, ...], memo: Memo) -> Snapshot:
        """The same snapshot from items by type: the same objects for types of the view that did not change."""
        return memo.identical(("snapshot", view), groups, lambda: self._assembled(view, groups, memo))

    def _assembled(self, view: Hashable, groups: tuple[TypeGroup, ...], memo: Memo) -> Snapshot:
        by_type = {group[0].type_url: self._of_type(view, group, memo) for group in groups if group}
        clusters, endpoints = by_type.get(CLUSTER, {}), by_type.get(ENDPOINT)
        if endpoints is not None:
            by_type[ENDPOINT] = memo.identical(
                ("bound", view), (endpoints, clusters), lambda: self._bound(view, endpoints, clusters, memo)
            )
        return Snapshot(resources=MappingProxyType(by_type))

    def _of_type(self, view: Hashable, group: TypeGroup, memo: Memo) -> Mapping[str, Resource]:
        return memo.identical(("type", view, group[0].type_url), (group,), lambda: self._by_name(group))

    def _by_name(self, group: TypeGroup) -> Mapping[str, Resource]:
        # Ten thousand listeners of engines are the same for proxies of all zones.
        known = self._named.get(group)
        if known is None:
            known = self._named[group] = MappingProxyType({item.name: self.resource(item) for item in group})
        return known

    @staticmethod
    def _bound(
        view: Hashable, endpoints: Mapping[str, Resource], clusters: Mapping[str, Resource], memo: Memo
    ) -> Mapping[str, Resource]:
        """The endpoints with versions that also change when their clusters do."""
        bound = {}
        for name, item in endpoints.items():
            cluster = clusters.get(name)
            bound[name] = memo.identical(
                ("bound", view, name),
                (item, cluster),
                partial(bound_to_clusters, item, () if cluster is None else (cluster.version,)),
            )
        return MappingProxyType(bound)

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
