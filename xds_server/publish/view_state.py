"""One view of the publisher: desired content, and the snapshots of its proxies."""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from engine.bounded_dict import BoundedDict
from xds_server.model.snapshot import OwnResources, Snapshot, with_resource
from xds_server.publish.nack_policy import NackPolicy
from xds_server.publish.part_isolation import PartChoices
from xds_server.xds import ContentKey

S = TypeVar("S")
"""Session type, opaque here."""

MAX_ROLLED_BACK: Final = 64
"""Cached snapshots of a view with different content rolled back."""

_Refused = tuple[str, Collection[ContentKey], PartChoices]
"""Proxy version, content that the proxy refused, and what it is sent of resources that are judged by parts."""


@dataclass(eq=False, slots=True, kw_only=True)
class ViewState(Generic[S]):
    """One view and its desired snapshot.

    ``founder``: host of its first proxy. ``rolled_back``: snapshots for proxies with refused content, shared by
    those that refused the same. ``personal``: snapshots with the own resources of single proxies, keyed by the
    identity of both parts, so that proxies with equal parts share one.
    """

    key: Hashable
    founder: str
    desired: Snapshot
    sessions: dict[S, None] = field(default_factory=dict)
    rolled_back: dict[_Refused, Snapshot] = field(default_factory=lambda: BoundedDict(MAX_ROLLED_BACK))
    personal: dict[tuple[int, int], tuple[OwnResources, Snapshot, Snapshot]] = field(default_factory=dict)

    def serve(self, desired: Snapshot) -> None:
        """Serve this snapshot, with refused content rolled back as it is now."""
        self.desired = desired
        self.rolled_back.clear()
        self.personal.clear()

    def snapshot_for(
        self,
        own: OwnResources,
        agent: str,
        rejected: Collection[ContentKey],
        nack_policy: NackPolicy,
        choices: PartChoices = (),
    ) -> Snapshot:
        """Snapshot of a proxy of this version that has rejected this content, with its ``choices`` of parts.

        Each of its ``own`` replaces the view's resource of that name; not if there is none, nor before the first
        snapshot.
        """
        served = self.desired
        if rejected or choices or nack_policy.has_held_from(agent):
            served = self._without_rejected(agent, rejected, choices, nack_policy)
        mine = tuple([item for item in own if item.name in served.of(item.type_url)])
        if not mine:
            return served
        key = id(own), id(served)
        known = self.personal.get(key)
        if known is None:
            made = served
            for item in mine:
                made = with_resource(made, item)
            known = self.personal[key] = (own, served, made)
        return known[2]

    def _without_rejected(
        self, agent: str, rejected: Collection[ContentKey], choices: PartChoices, nack_policy: NackPolicy
    ) -> Snapshot:
        key = (agent, rejected, choices)
        known = self.rolled_back.get(key)
        if known is None:
            known = nack_policy.effective(self.key, self.desired, rejected, agent, choices)
            self.rolled_back[key] = known
        return known

    def keep_personal(self, wanted: Mapping[int, OwnResources]) -> None:
        """Forget snapshots of unused own resources."""
        for key in [key for key in self.personal if key[0] not in wanted]:
            del self.personal[key]
