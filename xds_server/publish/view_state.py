"""One view of the publisher: what its proxies should have, and what they are served."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from xds_server.model.snapshot import Resource, Snapshot, with_resource
from xds_server.publish.nack_policy import NackPolicy

S = TypeVar("S")
"""A session. Nothing here needs to know what that is."""


@dataclass(eq=False, slots=True, kw_only=True)
class ViewState(Generic[S]):
    """One view: what it should have, and what it gets in the meantime.

    ``founder`` is the host of the proxy that it was first made for.

    ``by_rejections`` holds what is served to proxies that rejected secrets, by what they rejected. ``personal``
    holds ``effective``, or one of these, with the own resource of single proxies in it, by the identity of both:
    proxies with the same are served the same snapshot.
    """

    key: Hashable
    founder: str
    desired: Snapshot
    effective: Snapshot
    sessions: dict[S, None] = field(default_factory=dict)
    by_rejections: dict[frozenset[tuple[str, str]], Snapshot] = field(default_factory=dict)
    personal: dict[tuple[int, int], tuple[Resource, Snapshot, Snapshot]] = field(default_factory=dict)

    def serve(self, effective: Snapshot) -> None:
        """Serve this from now on."""
        self.effective = effective
        self.by_rejections.clear()
        self.personal.clear()

    def snapshot_for(self, own: Resource | None, rejected: Mapping[str, str], nack_policy: NackPolicy) -> Snapshot:
        """What a proxy of this view is served that has ``own`` in place of the view's resource of that name.

        A view without a resource of that name, or with nothing to serve yet, gets none by this. ``rejected`` are
        versions of secrets by name that this proxy rejected; it is served the versions before them.
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
        """Forget the snapshots of resources that no proxy has any more."""
        for key in [key for key in self.personal if key[0] not in wanted]:
            del self.personal[key]
