"""Resources with one-word content, and their refusals."""

from collections.abc import Collection

from xds_server.model.snapshot import Resource, content_of, resource
from xds_server.model.type_urls import CLUSTER
from xds_server.publish import NackPolicy, RecordedNack
from xds_server.xds import ContentKey


def cluster(name: str, content: str, *origins: str) -> Resource:
    """A cluster of this name with content for tests."""
    return resource(CLUSTER, name, content.encode(), origins)


def contents(*items: Resource) -> frozenset[ContentKey]:
    """The content of these as a stream names what its proxy has rejected."""
    return frozenset((item.type_url, item.name, content_of(item.version)) for item in items)


def refuse(
    policy: NackPolicy, items: Collection[Resource], *, host: str, agent: str = "", at_unix_s: float = 0.0
) -> bool:
    """Record that a proxy on this host refused these; returns whether more is held back from others."""
    refusal = RecordedNack(host=host, node=f"node {host}", agent=agent, at_unix_s=at_unix_s, reason="no")
    return policy.record_nack(contents(*items), refusal)
