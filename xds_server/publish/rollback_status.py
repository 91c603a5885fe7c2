"""Resources that proxies lack because of refusals: who refused them, why, since when, and what is served instead.

A reconnected proxy has rejected nothing on its new stream, but may still lack the desired content. Only the
record of refusals shows it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client.core import Metric

from xds_server.admin_api.status_types import RolledBackResource
from xds_server.metrics.control_metrics import ProxyMetrics
from xds_server.model.snapshot import Resource, ResourcePart, content_of
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.publish.content_rejections import RejectedContent
from xds_server.publish.part_isolation import frame_content, is_reply, parts_of
from xds_server.publish.publisher import Publisher

MOST_NAMED = 10


def rolled_back_resources(publisher: Publisher, now_unix_s: float) -> tuple[RolledBackResource, ...]:
    """Resources that connected proxies should have and lack because of a rejection."""
    rejected = publisher.nack_policy.rejected_contents
    if not rejected:
        return ()
    views = [
        (desired, publisher.served_snapshots(view))
        for view in publisher.views
        if (desired := publisher.desired(view))
    ]
    found = []
    for known in rejected.values():
        wanted: _Refused | None = None
        before = nothing = on_trial = 0
        for desired, snapshots in views:
            item = desired.of(known.type_url).get(known.name)
            if item is None or (refused := _refused(item, known.content)) is None:
                continue
            wanted = refused
            for snapshot, proxies in snapshots:
                served = snapshot.of(known.type_url).get(known.name)
                content = "" if served is None else refused.served_content(served)
                if not content:
                    nothing += proxies
                elif content == known.content:
                    on_trial += proxies
                else:
                    before += proxies
        if wanted is not None and before + nothing:
            found.append(_resource(known, wanted, now_unix_s, (before, nothing, on_trial)))
    return tuple(found)


class _Refused(NamedTuple):
    """The desired resource with refused content: its ``part``, its ``frame``, else the whole."""

    item: Resource
    part: ResourcePart | None = None
    frame: bool = False

    def served_content(self, served: Resource) -> str:
        """Content that a proxy has of this; empty for none."""
        if self.frame and served.parts is not None:
            return frame_content(served.parts)
        if self.part is None:
            return content_of(served.version)
        found = (one for one in parts_of(served) if one.name == self.part.name and not is_reply(one))
        return next((one.content for one in found), "")


def _refused(item: Resource, content: str) -> _Refused | None:
    if content_of(item.version) == content:
        return _Refused(item)
    if item.parts is not None and frame_content(item.parts) == content:
        return _Refused(item, frame=True)
    return next((_Refused(item, part) for part in parts_of(item) if part.content == content), None)


def _resource(
    known: RejectedContent, wanted: _Refused, now_unix_s: float, proxies: tuple[int, int, int]
) -> RolledBackResource:
    before, nothing, on_trial = proxies
    nodes = tuple(known.nodes)
    return RolledBackResource(
        type=SHORT_NAMES.get(known.type_url, known.type_url),
        name=known.name if wanted.part is None else f"{known.name}/{wanted.part.name}",
        version=wanted.item.version,
        origins=(wanted.part or wanted.item).origins,
        refused_by=nodes[:MOST_NAMED],
        refusals=len(nodes),
        hosts=len(known.by_host),
        held_from=tuple(sorted(known.agents_of_quorum())),
        age_s=round(max(0.0, now_unix_s - known.since_unix_s), 3),
        reason=known.reason,
        on_content_before=before,
        on_nothing=nothing,
        on_trial=on_trial,
    )


def rolled_back_metric(found: Sequence[RolledBackResource]) -> Metric:
    """Number of rolled-back resources by type, for a scrape."""
    counts: dict[tuple[str, ...], float] = {(kind,): 0 for kind in SHORT_NAMES.values()}
    for one in found:
        counts[one.type,] = counts.get((one.type,), 0) + 1
    return ProxyMetrics.xds_rolled_back_resources.family(counts)
