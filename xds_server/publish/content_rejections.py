"""Rejected content, trials of suspects, and the nodes that rejected each secret."""

from collections.abc import Collection, Iterable, Mapping

from xds_server.model.snapshot import Resource, Snapshot, content_of
from xds_server.publish.acked_content import ResourceKey, key_of

Suspect = tuple[str, str]
"""Name and content hash."""


class ContentRejections:
    """Rejected content hashes by name. All are rolled back, except the suspect on trial."""

    def __init__(self) -> None:
        self._contents: dict[ResourceKey, set[str]] = {}
        self._trials: dict[str, list[Suspect]] = {}
        self._secret_nacks: dict[ResourceKey, tuple[str, frozenset[str]]] = {}

    @property
    def contents(self) -> Mapping[ResourceKey, Collection[str]]:
        """Rejected content hashes, by type and name."""
        return self._contents

    def is_rejected(self, item: Resource) -> bool:
        """Whether this content is rejected, on trial or not."""
        return content_of(item.version) in self._contents.get(key_of(item), ())

    def is_rolled_back(self, item: Resource) -> bool:
        """Whether this content is rejected, and not on trial."""
        return self.is_rejected(item) and self.trial(item.type_url) != suspect_of(item)

    def trial(self, type_url: str) -> Suspect | None:
        """The suspect on trial, if any."""
        suspects = self._trials.get(type_url)
        return suspects[0] if suspects else None

    def nacked_by(self, secret: Resource) -> frozenset[str]:
        """Nodes that rejected this content of a secret, while no proxy has accepted it."""
        content, nodes = self._secret_nacks.get(key_of(secret), ("", frozenset[str]()))
        return nodes if content == content_of(secret.version) else frozenset()

    def reject(self, key: ResourceKey, contents: Iterable[str]) -> None:
        """Roll back these contents of a name."""
        self._contents.setdefault(key, set()).update(contents)

    def begin_trials(self, suspects: Iterable[Resource]) -> None:
        """Schedule these for trial, one after another."""
        for item in suspects:
            self._trials.setdefault(item.type_url, []).append(suspect_of(item))

    def end_trial(self, item: Resource) -> bool:
        """End the trial of this content; returns whether it was on trial or scheduled."""
        return self._end_trial(item.type_url, suspect_of(item))

    def note_secret_nack(self, secret: Resource, node: str) -> None:
        """Record that a node rejected this content of a secret."""
        nodes = self.nacked_by(secret) | {node}
        self._secret_nacks[key_of(secret)] = (content_of(secret.version), nodes)

    def clear(self, item: Resource) -> bool:
        """Record an ACK of this content; returns whether it was rejected or scheduled for trial."""
        key, content = key_of(item), content_of(item.version)
        if self._secret_nacks.get(key, ("",))[0] == content:
            del self._secret_nacks[key]
        was_rejected = self.is_rejected(item)
        if was_rejected:
            self._remove(key, content)
        return self.end_trial(item) or was_rejected

    def retain(self, desired: Collection[Snapshot]) -> None:
        """Forget content that is in no desired snapshot."""
        self._secret_nacks = {
            key: known
            for key, known in self._secret_nacks.items()
            if any(key[1] in snapshot.of(key[0]) for snapshot in desired)
        }
        for key in list(self._contents):
            type_url, name = key
            wanted = {content_of(item.version) for one in desired if (item := one.of(type_url).get(name))}
            for content in self._contents[key] - wanted:
                self._remove(key, content)
                self._end_trial(type_url, (name, content))

    def _remove(self, key: ResourceKey, content: str) -> None:
        self._contents[key].discard(content)
        if not self._contents[key]:
            del self._contents[key]

    def _end_trial(self, type_url: str, suspect: Suspect) -> bool:
        suspects = self._trials.get(type_url, [])
        if suspect not in suspects:
            return False
        suspects.remove(suspect)
        if not suspects:
            del self._trials[type_url]
        return True


def suspect_of(item: Resource) -> Suspect:
    """Name and content hash of a resource."""
    return item.name, content_of(item.version)
