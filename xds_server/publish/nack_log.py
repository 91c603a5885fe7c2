"""Log of rollbacks: which proxies rejected what, why, since when, and what they have instead.

A reconnected proxy has rejected nothing on its new stream, but still lacks the desired content. Only this log
shows it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import Metric

from engine.bounded_dict import BoundedDict
from xds_server.admin_api.status_types import RolledBackResource
from xds_server.metrics.control_metrics import ProxyMetrics
from xds_server.model.snapshot import Resource, content_of
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.publish.observer import Nack
from xds_server.publish.publisher import Publisher

MOST_NAMED: Final = 10
MAX_NACKS: Final = 1_000
"""Limit of rejected contents, and of proxies for each."""

_Key = tuple[str, str, str]
"""Type URL, name and content."""


@dataclass(slots=True, kw_only=True)
class _NackRecord:
    since_s: float
    reason: str
    nodes: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Effect:
    """Number of proxies by what they have instead of the rejected content."""

    wanted: Resource
    before: int = 0
    nothing: int = 0
    on_trial: int = 0


class NackLog:
    """Log of NACKs. ``note`` each; ``rolled_back`` returns those that still affect proxies."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: BoundedDict[_Key, _NackRecord] = BoundedDict(MAX_NACKS)

    def note(self, nack: Nack) -> None:
        """Record a NACK."""
        for item in nack.resources:
            key = (item.type_url, item.name, content_of(item.version))
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = _NackRecord(since_s=self._clock(), reason=nack.reason)
            known.reason = nack.reason or known.reason
            if len(known.nodes) < MAX_NACKS:
                known.nodes[nack.node.id] = None

    def rolled_back(self, publisher: Publisher) -> tuple[RolledBackResource, ...]:
        """Resources that connected proxies should have and lack because of a rejection."""
        now_s = self._clock()
        rejected = publisher.nack_policy.rejected_contents
        for key in [key for key in self._known if key[2] not in rejected.get(key[:2], ())]:
            del self._known[key]
        return tuple(
            self._resource(key, effect, now_s)
            for key, effect in _effects(publisher)
            if effect.before + effect.nothing
        )

    def _resource(self, key: _Key, effect: _Effect, now_s: float) -> RolledBackResource:
        known = self._known.get(key)
        nodes = () if known is None else tuple(known.nodes)
        return RolledBackResource(
            type=SHORT_NAMES.get(key[0], key[0]),
            name=key[1],
            version=effect.wanted.version,
            origins=effect.wanted.origins,
            refused_by=nodes[:MOST_NAMED],
            refusals=len(nodes),
            age_s=None if known is None else round(now_s - known.since_s, 3),
            reason="" if known is None else known.reason,
            on_content_before=effect.before,
            on_nothing=effect.nothing,
            on_trial=effect.on_trial,
        )


def rolled_back_metric(found: Sequence[RolledBackResource]) -> Metric:
    """Number of rolled-back resources by type, for a scrape."""
    counts: dict[tuple[str, ...], float] = {(kind,): 0 for kind in SHORT_NAMES.values()}
    for one in found:
        counts[one.type,] = counts.get((one.type,), 0) + 1
    return ProxyMetrics.xds_rolled_back_resources.family(counts)


def _effects(publisher: Publisher) -> Iterator[tuple[_Key, _Effect]]:
    counts = publisher.proxies_by_view
    for (type_url, name), contents in publisher.nack_policy.rejected_contents.items():
        found: dict[str, _Effect] = {}
        for view, proxies in counts.items():
            desired, effective = publisher.desired(view), publisher.effective(view)
            wanted = None if desired is None else desired.of(type_url).get(name)
            if wanted is None or effective is None or (content := content_of(wanted.version)) not in contents:
                continue
            effect = found.setdefault(content, _Effect(wanted=wanted))
            served = effective.of(type_url).get(name)
            if served is None:
                effect.nothing += proxies
            elif content_of(served.version) == content:
                effect.on_trial += proxies
            else:
                effect.before += proxies
        yield from (((type_url, name, content), effect) for content, effect in found.items())
