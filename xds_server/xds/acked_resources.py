"""Resources of one type that a peer has accepted.

A resource counts as held when the peer has accepted (ACK) it, never when it was sent.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from xds_server.model.snapshot import Resource

UNKNOWN: Final = "?"
"""Instead of a version: the peer may hold any."""

GONE: Final = ""
"""Instead of a version: the peer knows that the resource does not exist."""


@dataclass(slots=True, kw_only=True)
class AckedResources:
    """Accepted version of each resource by name; ``UNKNOWN`` and ``GONE`` are the two special cases.

    ``content``: what a SOTW peer holds of a type whose responses carry the full state. Such a response repeats it
    where something newer was rejected. ``has_foreign_content``: the peer has content that this process never
    sent.
    """

    versions: dict[str, str] = field(default_factory=dict)
    content: dict[str, Resource] = field(default_factory=dict)
    has_foreign_content: bool = False

    def version(self, name: str) -> str | None:
        """Accepted version of a resource; ``None`` if the peer has accepted none of that name."""
        return self.versions.get(name)

    def is_acked(self, item: Resource) -> bool:
        """Whether the peer has accepted this version."""
        return self.versions.get(item.name) == item.version

    def held(self) -> list[tuple[str, str]]:
        """Name and version of all held resources, ordered by name."""
        return sorted((name, version) for name, version in self.versions.items() if version != GONE)

    def confirm(self, resources: Iterable[Resource]) -> None:
        """Record versions that the peer holds."""
        self.versions.update((item.name, item.version) for item in resources)

    def mark_unknown(self, names: Iterable[str]) -> None:
        """Record that the peer may hold any version of these."""
        self.versions.update(dict.fromkeys(names, UNKNOWN))

    def mark_gone(self, name: str) -> None:
        """Record that the peer knows that this resource does not exist."""
        self.versions[name] = GONE

    def forget(self, name: str) -> None:
        """Record that the peer holds nothing of this name."""
        self.versions.pop(name, None)

    def forget_all(self, names: Iterable[str]) -> None:
        """Record that the peer has dropped these names."""
        for name in names:
            self.versions.pop(name, None)
            self.content.pop(name, None)

    def replace_content(self, resources: Mapping[str, Resource]) -> None:
        """Record that a SOTW peer holds exactly this content."""
        self.content = dict(resources)
        self.has_foreign_content = False

    def retain(self, wants: Callable[[str], bool]) -> None:
        """Forget names without subscription."""
        for known in (self.versions, self.content):
            for name in [name for name in known if not wants(name)]:
                del known[name]
