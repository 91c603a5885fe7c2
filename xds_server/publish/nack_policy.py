"""Content served in place of rejected content.

Rejected content is replaced by the last accepted content, else by nothing. While a listener or route is rolled
back, accepted clusters, endpoints and secrets that are no longer wanted stay; while a cluster is, secrets stay:
the rolled-back resource may still name them. A rollback ends with the next different content of that name.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from xds_server.model.snapshot import Resource, Snapshot, content_of, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET
from xds_server.publish.acked_content import AckedContent, ResourceKey, key_of
from xds_server.publish.content_rejections import ContentRejections, Suspect
from xds_server.publish.nack_decision import NackDecision, NackReport, decide_nack

_NO_VERSIONS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedContent:
    """Rollback data for a restart: rejected content hashes of a name, and what is served instead."""

    type_url: str
    name: str
    contents: tuple[str, ...]
    instead: Resource | None


class NackPolicy:
    """ACKs and NACKs of all proxies; ``effective`` applies them to a desired snapshot.

    A NACK takes two steps: ``decide`` without effect, then ``apply``.
    """

    def __init__(self) -> None:
        self._acked = AckedContent()
        self._rejections = ContentRejections()

    @property
    def rejected_contents(self) -> Mapping[ResourceKey, Collection[str]]:
        """Rejected content hashes, by type and name."""
        return self._rejections.contents

    def rejections(self) -> tuple[RejectedContent, ...]:
        """Every rollback with its fallback; without secrets, because this is written to disk."""
        return tuple(
            RejectedContent(
                type_url=type_url,
                name=name,
                contents=tuple(sorted(contents)),
                instead=self._acked.for_everyone((type_url, name)),
            )
            for (type_url, name), contents in self.rejected_contents.items()
            if type_url != SECRET
        )

    def restore(self, rejections: Iterable[RejectedContent]) -> None:
        """Restore rollbacks of an earlier run."""
        for known in rejections:
            self._rejections.reject((known.type_url, known.name), known.contents)
            if known.instead is not None:
                self._acked.restore(known.instead)

    def trial(self, type_url: str) -> Suspect | None:
        """Name and content hash of the suspect on trial, if any."""
        return self._rejections.trial(type_url)

    def record_ack(self, view: Hashable, resources: Iterable[Resource]) -> bool:
        """Record an ACK by a proxy of ``view``; returns whether the served content changes."""
        cleared = [self._rejections.clear(item) for item in self._acked.record(view, resources)]
        return any(cleared)

    def decide(self, report: NackReport) -> NackDecision:
        """Effect of this NACK; changes no state."""
        return decide_nack(report, self._acked, self._rejections)

    def apply(self, decision: NackDecision) -> None:
        """Apply the decision on a NACK."""
        for item in decision.counted_secrets:
            self._rejections.note_secret_nack(item, decision.report.node)
        if decision.ended_trial is not None:
            self._rejections.end_trial(decision.ended_trial)
        for item in decision.rejected:
            self._rejections.reject(key_of(item), (content_of(item.version),))
        self._rejections.begin_trials(decision.tried)

    def record_timeout(self, resources: Collection[Resource]) -> bool:
        """Roll back the suspect on trial, for lack of an answer; returns whether the served content changes."""
        ended = [self._rejections.end_trial(item) for item in resources]
        return any(ended)

    def prune(self, desired: Collection[Snapshot], now_s: float) -> None:
        """Forget rejections of removed content, and accepted content unused for long."""
        if not desired:
            return  # without connected proxies the desired content is unknown
        self._rejections.retain(desired)
        self._acked.expire(desired, now_s)

    def effective(
        self, view: Hashable, desired: Snapshot, rejected_secrets: Mapping[str, str] = _NO_VERSIONS
    ) -> Snapshot:
        """Snapshot to serve: ``desired`` itself if nothing in it is rolled back.

        ``rejected_secrets``: versions of secrets by name rolled back for this proxy only.
        """
        rejected = [
            item
            for type_url, name in self.rejected_contents
            if (item := desired.of(type_url).get(name)) and self._rejections.is_rolled_back(item)
        ]
        rejected += [
            item
            for name, version in rejected_secrets.items()
            if (item := desired.of(SECRET).get(name)) and item.version == version and item not in rejected
        ]
        if not rejected:
            return desired
        served = {key_of(item): item for by_name in desired.resources.values() for item in by_name.values()}
        rolled_back: dict[str, set[str]] = {}
        for item in rejected:
            key = key_of(item)
            rolled_back.setdefault(item.type_url, set()).add(item.name)
            contents = {content_of(item.version), *self.rejected_contents.get(key, ())}
            fallback = self._acked.fallback(view, key, contents)
            if fallback is None:
                del served[key]
            else:
                served[key] = fallback
        still_named = _named_by(rolled_back)
        for key, item in self._acked.of_view(view).items():
            if key[0] in still_named:
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
