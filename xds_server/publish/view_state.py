"""One view of the publisher: what its proxies should have, and what they are served."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from xds_server.model.snapshot import Resource, Snapshot, with_resource
from xds_server.publish.nack_policy import NackPolicy

S = TypeVar("S")
"""A session: who is served. Nothing here needs to know what that is."""


@dataclass(eq=False, slots=True, kw_only=True)
class ViewState(Generic[S]):
    """One view: what it should have, and what it gets in the meantime.

    ``founder`` is the host of the proxy that it was first made for.

    ``spared`` holds what is served to proxies that refuse secrets, by what they refuse. ``personal`` holds
    ``effective``, or one of these, with the own resource of single proxies in it, by the identity of both: proxies
    with the same are served the same snapshot.
    """

    key: Hashable
    founder: str
    desired: Snapshot
    effective: Snapshot
    sessions: dict[S, None] = field(default_factory=dict)
    spared: dict[frozenset[tuple[str, str]], Snapshot] = field(default_factory=dict)
    personal: dict[tuple[int, int], tuple[Resource, Snapshot, Snapshot]] = field(default_factory=dict)

    def serve(self, effective: Snapshot) -> None:
        """Serve this from now on."""
        self.effective = effective
        self.spared.clear()
        self.personal.clear()

    def snapshot_for(self, own: Resource | None, refused: Mapping[str, str], acceptance: NackPolicy) -> Snapshot:
        """What a proxy of this view is served that has ``own`` in place of the view's resource of that name.

        A view without a resource of that name, or with nothing to serve yet, gets none by this. ``refused`` are
        versions of secrets by name that this proxy refuses, and is served those before instead.
        """
        served = self.effective if not refused else self._spared(refused, acceptance)
        if own is None or own.name not in served.of(own.type_url):
            return served
        key = id(own), id(served)
        known = self.personal.get(key)
        if known is None:
            known = self.personal[key] = (own, served, with_resource(served, own))
        return known[2]

    def _spared(self, refused: Mapping[str, str], acceptance: NackPolicy) -> Snapshot:
        key = frozenset(refused.items())
        if key not in self.spared:
            self.spared[key] = acceptance.effective(self.key, self.desired, refused)
        return self.spared[key]

    def keep_personal(self, wanted: Mapping[int, Resource]) -> None:
        """Forget the snapshots of resources that no proxy has any more."""
        for key in [key for key in self.personal if key[0] not in wanted]:
            del self.personal[key]
