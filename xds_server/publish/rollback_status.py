"""Resources that proxies lack because of refusals: who refused them, why, since when, and what is served instead.

A reconnected proxy has rejected nothing on its new stream, but may still lack the desired content. Only the
record of refusals shows it.
"""

from collections.abc import Sequence

from prometheus_client.core import Metric

from xds_server.admin_api.status_types import RolledBackResource
from xds_server.metrics.control_metrics import ProxyMetrics
from xds_server.model.snapshot import Resource, content_of
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.publish.content_rejections import RejectedContent
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
        wanted: Resource | None = None
        before = nothing = on_trial = 0
        for desired, snapshots in views:
            item = desired.of(known.type_url).get(known.name)
            if item is None or content_of(item.version) != known.content:
                continue
            wanted = item
            for snapshot, proxies in snapshots:
                served = snapshot.of(known.type_url).get(known.name)
                if served is None:
                    nothing += proxies
                elif content_of(served.version) == known.content:
                    on_trial += proxies
                else:
                    before += proxies
        if wanted is not None and before + nothing:
            found.append(_resource(known, wanted, now_unix_s, (before, nothing, on_trial)))
    return tuple(found)


def _resource(
    known: RejectedContent, wanted: Resource, now_unix_s: float, proxies: tuple[int, int, int]
) -> RolledBackResource:
    before, nothing, on_trial = proxies
    nodes = tuple(known.nodes)
    return RolledBackResource(
        type=SHORT_NAMES.get(known.type_url, known.type_url),
        name=known.name,
        version=wanted.version,
        origins=wanted.origins,
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
