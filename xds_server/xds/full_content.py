"""What a peer without any resource of a type is sent: all of them, made once for all such peers.

After a restart thousands of peers ask for the same thousand resources at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from engine.bounded_dict import BoundedDict
from xds_server.model.snapshot import Resource, set_version

CACHED_CONTENTS: Final = 32
"""Each is of one type of one snapshot; views share most of theirs."""

FEW: Final = 4
"""Up to this number of resources, looking at each is as fast. Proxies with a layer of their own have one each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullContent:
    """All resources of one type of a snapshot: by name in order, as a tuple, and their versions."""

    by_name: Mapping[str, Resource]
    resources: tuple[Resource, ...]
    versions: Mapping[str, str]
    set_version: str


class FullContents:
    """Full contents by identity of what snapshots have of a type."""

    def __init__(self) -> None:
        # The entry also holds the resources, so that their id is not reused.
        self._known: BoundedDict[int, tuple[Mapping[str, Resource], FullContent]] = BoundedDict(CACHED_CONTENTS)

    def of(self, resources: Mapping[str, Resource]) -> FullContent:
        """The full content of these resources; the same object for the same mapping."""
        known = self._known.get(id(resources))
        if known is None:
            items = tuple(resources[name] for name in sorted(resources))
            made = FullContent(
                by_name={item.name: item for item in items},
                resources=items,
                versions={item.name: item.version for item in items},
                set_version=set_version(items),
            )
            known = self._known[id(resources)] = (resources, made)
        return known[1]
