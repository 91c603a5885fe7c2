"""Content served in place of rejected content.

A proxy gets the last accepted content instead of what it rejected, else nothing of that name. From proxies that
have not tried it, content is held back only once a quorum rejected it, and only if accepted content can replace
it. While a listener or route is rolled back, accepted clusters, endpoints and secrets that are no longer wanted
stay, and routes while a listener is; while a cluster is, secrets stay: the rolled-back resource may still name
them. A rollback ends with the next different content of that name.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from xds_server.model.snapshot import Resource, Snapshot, content_of, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET
from xds_server.publish.acked_content import AckedContent, key_of
from xds_server.publish.content_rejections import ContentRejections, RecordedNack, RejectedContent
from xds_server.publish.part_isolation import PartChoice, PartChoices, ResourceKey, with_choice
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

    def has_acked(self, content: ContentKey) -> bool:
        """Whether a proxy accepted this content of a resource or part."""
        return self._acked.has_content(content)

    def is_held(self, content: ContentKey) -> bool:
        """Whether this content is held back from proxies that have not tried it."""
        return self._rejections.is_held(content)

    def has_held_from(self, agent: str) -> bool:
        """Whether any content is held back from proxies of this version."""
        return bool(self._rejections.held_from(agent))

    def record_ack(self, view: Hashable, resources: Iterable[Resource]) -> bool:
        """Record an ACK by a proxy of ``view``; returns whether other proxies had refused any of it."""
        return self._rejections.clear(self._acked.record(view, resources))

    def record_nack(self, contents: Iterable[ContentKey], refusal: RecordedNack) -> bool:
        """Record what a proxy refused; returns whether other proxies are served other content now."""
        news = [self._rejections.add(key, refusal) for key in contents if not self._acked.has_content(key)]
        return any(news)

    def accepted(self, view: Hashable, key: ResourceKey) -> tuple[Resource, ...]:
        """Accepted contents of a resource that may be served to a view, newest first."""
        return self._acked.all_of(view, key)

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
        choices: PartChoices = (),
    ) -> Snapshot:
        """Snapshot for a proxy: ``desired`` itself if nothing in it is rolled back.

        ``rejected``: what this proxy itself has rejected; ``choices`` where it is judged by parts. ``agent``: its
        version.
        """
        own: dict[ResourceKey, set[str]] = {}
        for type_url, name, content in rejected:
            own.setdefault((type_url, name), set()).add(content)
        held, by_parts = self._rejections.held_from(agent), dict(choices)
        replaced: dict[ResourceKey, Resource | None] = {}
        for key in own.keys() | held.keys() | by_parts.keys():
            item = desired.of(key[0]).get(key[1])
            if item is None:
                continue
            refused, held_here = own.get(key, set()), held.get(key, ())
            if key in by_parts:
                found = with_choice(item, by_parts[key], self._acked.all_of(view, key), held_here)
            else:
                found = self._unless_refused(view, item, refused, held_here)
            if found is not item:
                replaced[key] = found
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

    def _unless_refused(
        self, view: Hashable, item: Resource, refused: Collection[str], held: Collection[str]
    ) -> Resource | None:
        """The resource, or accepted content in place of it or of its parts; ``None`` for nothing."""
        content = content_of(item.version)
        if content in refused or content in held:
            fallback = self._acked.fallback(view, key_of(item), {content, *refused})
            return fallback if fallback or content in refused else item
        return with_choice(item, PartChoice(), self._acked.all_of(view, key_of(item)), held)

    def forget(self, view: Hashable) -> None:
        """Forget a view without proxies."""
        self._acked.forget(view)


def _named_by(rolled_back: Collection[str]) -> Collection[str]:
    """Types that rolled-back resources of these types may name."""
    if LISTENER in rolled_back:
        return (CLUSTER, ENDPOINT, SECRET, ROUTE)
    if ROUTE in rolled_back:
        return (CLUSTER, ENDPOINT, SECRET)
    return (SECRET,) if CLUSTER in rolled_back else ()
