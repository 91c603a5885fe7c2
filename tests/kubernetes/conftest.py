"""What tests of the API's semantics share: a pool to write, and events to read."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from tests.cluster import Cluster
from xds_server.k8s.api_resources import ENGINE_POOLS
from xds_server.k8s.kube_api import ObjectSelector, WatchEvent


def pool(name: str, **spec: Any) -> dict[str, Any]:
    """An EnginePool."""
    about = {"name": name, "namespace": "default"}
    return {
        "apiVersion": "switchgear.dev/v1alpha1",
        "kind": "EnginePool",
        "metadata": about,
        "spec": {"model": "m", **spec},
    }


class Events:
    """A watch, event by event."""

    def __init__(self, stream: AsyncIterator[WatchEvent]) -> None:
        self._stream = stream

    async def next(self) -> WatchEvent:
        """The next event other than a bookmark."""
        while (event := await anext(self._stream)).type == "BOOKMARK":
            pass
        return event

    async def bookmark(self) -> str:
        """The version of the next event, which has to be a bookmark."""
        event = await anext(self._stream)
        assert event.type == "BOOKMARK", event
        return str(event.object["metadata"]["resourceVersion"])

    async def name(self) -> tuple[str, str]:
        """Type and name of the next event."""
        event = await self.next()
        return event.type, event.object["metadata"]["name"]


@asynccontextmanager
async def watching(
    cluster: Cluster, which: ObjectSelector | None = None, *, since: str = "", timeout_s: float = 300
) -> AsyncIterator[Events]:
    """What happens from now on, or since a version."""
    which = which or ObjectSelector(resource=ENGINE_POOLS)
    version = since or (await cluster.api.page(which)).resource_version
    async with aclosing(cluster.api.watch(which, version, timeout_s=timeout_s)) as stream:  # type: ignore[type-var]
        yield Events(stream)
