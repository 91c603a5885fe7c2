"""Content served in place of rejected content.

A proxy gets the last accepted content instead of what it rejected, else nothing of that name. From proxies that
have not tried it, content is held back only once a quorum rejected it, and only if accepted content can replace
it. While a listener or route is rolled back, accepted clusters, endpoints and secrets that are no longer wanted
stay; while a cluster is, secrets stay: the rolled-back resource may still name them. A rollback ends with the next
different content of that name.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from xds_server.model.snapshot import Resource, Snapshot, content_of, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET
from xds_server.publish.acked_content import AckedContent, ResourceKey, key_of
from xds_server.publish.content_rejections import ContentRejections, RecordedNack, RejectedContent
from xds_server.xds import ContentKey

_NOTHING: Final[frozenset[ContentKey]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRejection:
    """A refused content for a restart: who refused it, and the accepted content that replaces it."""

    type_url: str
    name: str
    content: str
    refusals: tuple[RecordedNack, ...]
    instead: Resource | None


class NackPolicy:
    """ACKs and NACKs of all proxies; ``effective`` applies them to a desired snapshot."""

    def __init__(self) -> None:
        self._acked = AckedContent()
        self._rejections = ContentRejections()

    @property
    def rejected_contents(self) -> Mapping[ContentKey, RejectedContent]:
        """Contents that proxies refused and none accepted."""
        return self._rejections.known

    def rejections(self) -> tuple[KeptRejection, ...]:
        """Every refused content with its replacement; without secrets, because this is written to disk."""
        return tuple(
            KeptRejection(
                type_url=known.type_url,
                name=known.name,
                content=known.content,
                refusals=tuple(known.by_host.values()),
                instead=self._acked.for_everyone((known.type_url, known.name)),
            )
            for known in self.rejected_contents.values()
            if known.type_url != SECRET
        )

    def restore(self, rejections: Iterable[KeptRejection]) -> None:
        """Restore refusals of an earlier run, and the content accepted then."""
        for known in rejections:
            for refusal in known.refusals:
                self._rejections.add((known.type_url, known.name, known.content), refusal)
            if known.instead is not None:
                self._acked.restore(known.instead)

    def is_acked(self, item: Resource) -> bool:
        """Whether a proxy last accepted this content."""
        return self._acked.is_acked(item)

    def is_held(self, item: Resource) -> bool:
        """Whether this content is held back from proxies that have not tried it."""
        return self._rejections.is_held(item)

    def has_held_from(self, agent: str) -> bool:
        """Whether any content is held back from proxies of this version."""
        return bool(self._rejections.held_from(agent))

    def record_ack(self, view: Hashable, resources: Iterable[Resource]) -> bool:
        """Record an ACK by a proxy of ``view``; returns whether other proxies had refused any of it."""
        return self._rejections.clear(self._acked.record(view, resources))

    def record_nack(self, items: Iterable[Resource], refusal: RecordedNack) -> bool:
        """Record what a proxy refused; returns whether other proxies are served other content now."""
        news = [
            self._rejections.add((item.type_url, item.name, content_of(item.version)), refusal)
            for item in items
            if not self._acked.is_acked(item)
        ]
        return any(news)

    def prune(self, desired: Collection[Snapshot], now_s: float) -> bool:
        """Forget refusals of removed content, and accepted content unused for long; returns as ``record_nack``."""
        if not desired:
            return False  # without connected proxies the desired content is unknown
        self._acked.expire(desired, now_s)
        return self._rejections.retain(desired)

    def effective(
        self,
        view: Hashable,
        desired: Snapshot,
        rejected: Collection[ContentKey] = _NOTHING,
        agent: str = "",
    ) -> Snapshot:
        """Snapshot for a proxy: ``desired`` itself if nothing in it is rolled back.

        ``rejected``: what this proxy itself has rejected. ``agent``: its version.
        """
        own: dict[ResourceKey, set[str]] = {}
        for type_url, name, content in rejected:
            own.setdefault((type_url, name), set()).add(content)
        held = self._rejections.held_from(agent)
        replaced: dict[ResourceKey, Resource | None] = {}
        for key in own.keys() | held.keys():
            item = desired.of(key[0]).get(key[1])
            if item is None:
                continue
            content, refused = content_of(item.version), own.get(key, set())
            if content in refused or content in held.get(key, ()):
                fallback = self._acked.fallback(view, key, {content, *refused})
                if fallback is not None or content in refused:
                    replaced[key] = fallback
        if not replaced:
            return desired
        served = {key_of(item): item for by_name in desired.resources.values() for item in by_name.values()}
        rolled_back: dict[str, set[str]] = {}
        for key, fallback in replaced.items():
            rolled_back.setdefault(key[0], set()).add(key[1])
            if fallback is None:
                del served[key]
            else:
                served[key] = fallback
        still_named = _named_by(rolled_back)
        for key, item in self._acked.of_view(view).items():
            if key[0] in still_named and key not in replaced:
                served.setdefault(key, item)
        return snapshot(served.values(), assignments=desired.assignments, rolled_back=rolled_back)

    def forget(self, view: Hashable) -> None:
        """Forget a view without proxies."""
        self._acked.forget(view)


def _named_by(rolled_back: Collection[str]) -> Collection[str]:
    """Types that rolled-back resources of these types may name."""
    if LISTENER in rolled_back or ROUTE in rolled_back:
        return (CLUSTER, ENDPOINT, SECRET)
    return (SECRET,) if CLUSTER in rolled_back else ()
