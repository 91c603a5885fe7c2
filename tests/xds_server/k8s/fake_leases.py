"""A minimal API server for Leases: versions, conflicts, and injected faults."""

# ruff: noqa: ARG002 - a fake has the parameters of the real one

import asyncio
import copy
from typing import Any

from xds_server.k8s.api_resources import ApiResource
from xds_server.k8s.kube_api import ApiError, KubeApi, KubeObject, ListPage, ObjectSelector


class FakeLeases(KubeApi):
    """Leases in memory; ``down``: no answers."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.down = False

    async def get(self, resource: ApiResource, namespace: str, name: str) -> KubeObject:
        await self._reach()
        if name not in self.objects:
            raise ApiError(404, "NotFound", name)
        return copy.deepcopy(self.objects[name])

    async def create(self, resource: ApiResource, namespace: str, body: KubeObject) -> KubeObject:
        await self._reach()
        name = str(body["metadata"]["name"])
        if name in self.objects:
            raise ApiError(409, "AlreadyExists", name)
        return self._put(name, body)

    async def replace(
        self, resource: ApiResource, namespace: str, name: str, body: KubeObject, *, subresource: str = ""
    ) -> KubeObject:
        await self._reach()
        if name not in self.objects:
            raise ApiError(404, "NotFound", name)
        if body["metadata"].get("resourceVersion") != self.objects[name]["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", name)
        return self._put(name, body)

    async def apply(
        self,
        resource: ApiResource,
        namespace: str,
        name: str,
        body: KubeObject,
        *,
        manager: str,
        force: bool = True,
        subresource: str = "",
        dry_run: bool = False,
    ) -> KubeObject:
        await self._reach()
        return self._put(name, body)

    async def delete(self, resource: ApiResource, namespace: str, name: str, *, dry_run: bool = False) -> None:
        await self._reach()
        self.objects.pop(name, None)

    async def page(self, which: ObjectSelector, *, more: str = "", limit: int = 500) -> ListPage:
        await self._reach()
        key, _, value = which.labels.partition("=")
        items = tuple(
            copy.deepcopy(one)
            for one in self.objects.values()
            if (one["metadata"].get("labels") or {}).get(key) == value
        )
        return ListPage(items=items, resource_version=str(self.version))

    def _put(self, name: str, body: KubeObject) -> KubeObject:
        self.version += 1
        made = copy.deepcopy(dict(body))
        made["metadata"] = {**made["metadata"], "resourceVersion": str(self.version)}
        self.objects[name] = made
        return copy.deepcopy(made)

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise ApiError(0, "Unreachable", "no answer")
