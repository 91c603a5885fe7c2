"""One view of the publisher: what its proxies should have, and what they are served."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xds_server.snapshot import Resource, Snapshot, with_resource

if TYPE_CHECKING:
    from xds_server.publish.session import Session


@dataclass(eq=False, slots=True, kw_only=True)
class Served:
    """One view: what it should have, and what it gets in the meantime.

    ``founder`` is the host of the proxy that it was first made for.

    ``personal`` holds ``effective`` with the own resource of single proxies in it, by the identity of that
    resource: proxies with the same one are served the same snapshot.
    """

    key: Hashable
    founder: str
    desired: Snapshot
    effective: Snapshot
    sessions: "dict[Session, None]" = field(default_factory=dict)
    personal: dict[int, tuple[Resource, Snapshot]] = field(default_factory=dict)

    def serve(self, effective: Snapshot) -> None:
        """Serve this from now on."""
        self.effective = effective
        self.personal.clear()

    def snapshot_with(self, own: Resource | None) -> Snapshot:
        """What a proxy of this view is served that has ``own`` in place of the view's resource of that name.

        A view without a resource of that name, or with nothing to serve yet, gets none by this.
        """
        if own is None or own.name not in self.effective.of(own.type_url):
            return self.effective
        known = self.personal.get(id(own))
        if known is None:
            known = self.personal[id(own)] = (own, with_resource(self.effective, own))
        return known[1]

    def keep_personal(self, wanted: Mapping[int, Resource]) -> None:
        """Forget the snapshots of resources that no proxy has any more."""
        for key in self.personal.keys() - wanted.keys():
            del self.personal[key]
