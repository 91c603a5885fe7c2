"""Resources whose content is a word."""

from xds_server.model.snapshot import Resource, resource
from xds_server.model.type_urls import CLUSTER


def cluster(name: str, content: str, *origins: str) -> Resource:
    """A cluster of this name; what it says is for tests to read, and for no proxy."""
    return resource(CLUSTER, name, content.encode(), origins)
