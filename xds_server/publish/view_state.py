"""One view of the publisher: desired and served content."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from xds_server.model.snapshot import Resource, Snapshot, with_resource
from xds_server.publish.nack_policy import NackPolicy

S = TypeVar("S")
"""Session type, opaque here."""


@dataclass(eq=False, slots=True, kw_only=True)
class ViewState(Generic[S]):
    """One view: its desired and its served snapshot.

    ``founder``: host of its first proxy. ``by_rejections``: snapshots for proxies that rejected secrets, by
    rejections. ``personal``: snapshots with the own resource of single proxies, keyed by the identity of both
    parts, so that proxies with equal parts share one.
    """

    key: Hashable
    founder: str
    desired: Snapshot
    effective: Snapshot
    sessions: dict[S, None] = field(default_factory=dict)
    by_rejections: dict[frozenset[tuple[str, str]], Snapshot] = field(default_factory=dict)
    personal: dict[tuple[int, int], tuple[Resource, Snapshot, Snapshot]] = field(default_factory=dict)

    def serve(self, effective: Snapshot) -> None:
        """Serve this snapshot."""
        self.effective = effective
        self.by_rejections.clear()
        self.personal.clear()

    def snapshot_for(self, own: Resource | None, rejected: Mapping[str, str], nack_policy: NackPolicy) -> Snapshot:
        """Snapshot of a proxy whose ``own`` replaces the view's resource of that name.

        Without such a resource, or before the first snapshot, nothing is replaced. ``rejected``: versions of
        secrets by name rejected by this proxy; it gets the previous ones.
        """
        served = self.effective if not rejected else self._without_rejected(rejected, nack_policy)
        if own is None or own.name not in served.of(own.type_url):
            return served
        key = id(own), id(served)
        known = self.personal.get(key)
        if known is None:
            known = self.personal[key] = (own, served, with_resource(served, own))
        return known[2]

    def _without_rejected(self, rejected: Mapping[str, str], nack_policy: NackPolicy) -> Snapshot:
        key = frozenset(rejected.items())
        if key not in self.by_rejections:
            self.by_rejections[key] = nack_policy.effective(self.key, self.desired, rejected)
        return self.by_rejections[key]

    def keep_personal(self, wanted: Mapping[int, Resource]) -> None:
        """Forget snapshots of unused own resources."""
        for key in [key for key in self.personal if key[0] not in wanted]:
            del self.personal[key]
