"""Connection to a Kubernetes API server, with the requests that Switchgear needs.

Objects are JSON as received; readers validate them. Every failure is an ``ApiError``. A watch ends when the
server ends it, or when nothing, not even a bookmark, arrives for too long; the caller opens a new one.

Source: Kubernetes API concepts (list, watch, bookmarks, 410 Gone, server-side apply).
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import aiohttp

from xds_server.k8s.api_resources import ApiResource

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient

KubeObject: TypeAlias = Mapping[str, Any]
"""A Kubernetes object as JSON."""

REQUEST_TIMEOUT_S: Final = 10.0
SILENT_S: Final = 150.0
"""Timeout of a silent watch; bookmarks arrive about once a minute."""

PAGE: Final = 500
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Limit of a line; objects are at most 1.5 MiB in etcd."""

MOST_RETRY_AFTER_S: Final = 300.0
"""Maximum Retry-After that is respected; objects grow stale meanwhile."""

_FIELD_MANAGER: Final = "fieldManager"
_MALFORMED: Final = "Malformed"
_TOO_LARGE: Final = "TooLarge"


class ApiError(Exception):
    """A failed request. ``status``: HTTP status, 0 without an answer; ``reason``: of Kubernetes' ``Status``."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        """One line for logs and errors."""
        return f"{self.status or 'no answer'} {self.reason}: {self.message}"

    @property
    def expired(self) -> bool:
        """Whether the requested version is no longer stored (410): list again."""
        return self.status == 410 or self.reason == "Expired"

    @property
    def unreadable(self) -> bool:
        """Whether the answer is unreadable; repeating the request would not help."""
        return self.status == 0 and self.reason in {_MALFORMED, _TOO_LARGE}

    @property
    def conflict(self) -> bool:
        """Whether another writer was first, or owns the field (409)."""
        return self.status == 409

    @property
    def missing(self) -> bool:
        """Whether the object or its kind does not exist (404)."""
        return self.status == 404

    @property
    def forbidden(self) -> bool:
        """Whether access is denied (401, 403)."""
        return self.status in {401, 403}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """Part of a list; ``more``: token of the next page, empty at the end."""

    items: Sequence[KubeObject]
    resource_version: str
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSelector:
    """Selects objects of a resource: by namespace (empty: all) and by selectors."""

    resource: ApiResource
    namespace: str = ""
    labels: str = ""
    fields: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """ADDED, MODIFIED or DELETED with the object, or BOOKMARK with its version only."""

    type: str
    object: KubeObject = field(repr=False)


class KubeApi:
    """Requests to one API server."""

    def __init__(self, client: "ApiClient") -> None:
        self._client = client

    @property
    def server(self) -> str:
        """Address of the server, for messages."""
        return str(self._client.configuration.host)

    async def page(self, which: ObjectSelector, *, more: str = "", limit: int = PAGE) -> ListPage:
        """A page of a list; an expired page token raises an ``ApiError`` that is ``expired``."""
        query = {"limit": str(limit), **_selectors(which)}
        if more:
            query["continue"] = more
        return _page(await self._ask("GET", which.resource.path(which.namespace), query))

    async def watch(
        self,
        which: ObjectSelector,
        resource_version: str,
        *,
        timeout_s: float,
        silent_s: float = SILENT_S,
        on_open: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events after ``resource_version`` until the server ends the watch, at the latest after ``timeout_s``.

        ``on_open`` is called when the server accepts the watch, possibly long before the first event.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout_s))),
            **_selectors(which),
        }
        limits = aiohttp.ClientTimeout(sock_connect=REQUEST_TIMEOUT_S, sock_read=silent_s)
        path = which.resource.path(which.namespace)
        try:
            response = await self._send("GET", path, query, limits)
            async with response:
                if response.status >= 400:
                    raise _refusal(response, await response.read())
                on_open()
                async for line in _lines(response):
                    yield _event(line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unanswered(error) from error

    async def get(self, resource: ApiResource, namespace: str, name: str) -> KubeObject:
        """One object."""
        return await self._ask("GET", resource.path(namespace, name), {})

    async def create(self, resource: ApiResource, namespace: str, body: KubeObject) -> KubeObject:
        """Create an object; ``conflict`` if the name exists."""
        return await self._ask("POST", resource.path(namespace), {}, body, "application/json")

    async def replace(
        self, resource: ApiResource, namespace: str, name: str, body: KubeObject, *, subresource: str = ""
    ) -> KubeObject:
        """Replace a whole object; ``conflict`` unless its ``resourceVersion`` is still the latest."""
        path = resource.path(namespace, name, subresource)
        return await self._ask("PUT", path, {}, body, "application/json")

    async def merge(
        self, resource: ApiResource, namespace: str, name: str, patch: KubeObject, *, subresource: str = ""
    ) -> KubeObject:
        """Apply a JSON merge patch."""
        path = resource.path(namespace, name, subresource)
        return await self._ask("PATCH", path, {}, patch, "application/merge-patch+json")

    async def strategic(
        self, resource: ApiResource, namespace: str, name: str, patch: KubeObject, *, subresource: str = ""
    ) -> KubeObject:
        """Apply a strategic merge patch, which knows the keys of built-in lists (pod conditions)."""
        path = resource.path(namespace, name, subresource)
        return await self._ask("PATCH", path, {}, patch, "application/strategic-merge-patch+json")

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
        """Server-side apply as ``manager``, which then owns the applied fields."""
        query = {_FIELD_MANAGER: manager, "force": "true" if force else "false"}
        if dry_run:
            query["dryRun"] = "All"
        path = resource.path(namespace, name, subresource)
        return await self._ask("PATCH", path, query, body, "application/apply-patch+yaml")

    async def delete(self, resource: ApiResource, namespace: str, name: str, *, dry_run: bool = False) -> None:
        """Delete an object; a missing one is not an error."""
        query = {"dryRun": "All"} if dry_run else {}
        try:
            await self._ask("DELETE", resource.path(namespace, name), query)
        except ApiError as error:
            if not error.missing:
                raise

    async def get_raw(self, path: str) -> KubeObject:
        """Answer at a non-resource path (``/version``, ``/apis/switchgear.dev/v1alpha1``)."""
        return await self._ask("GET", path, {})

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: KubeObject | None = None,
        content_type: str = "",
    ) -> KubeObject:
        limits = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        try:
            response = await self._send(method, path, query, limits, body=body, content_type=content_type)
            async with response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unanswered(error) from error
        if response.status >= 400:
            raise _refusal(response, content)
        return _object(content)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
        *,
        body: KubeObject | None = None,
        content_type: str = "",
    ) -> aiohttp.ClientResponse:
        from kubernetes.aio.client.exceptions import ApiException  # noqa: PLC0415 - see ``connecting``
        from kubernetes.aio.config import ConfigException  # noqa: PLC0415 - the same

        headers = {"Accept": "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        try:
            serialized = await self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*serialized, _request_timeout=limits)
        except (ApiException, ConfigException) as error:
            raise ApiError(0, "Unreachable", str(error)) from error
        response: aiohttp.ClientResponse = answer.response
        return response


def _selectors(which: ObjectSelector) -> dict[str, str]:
    said = {"labelSelector": which.labels, "fieldSelector": which.fields}
    return {key: text for key, text in said.items() if text}


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines as they arrive; aiohttp's own reader is limited by its buffer."""
    rest = bytearray()
    async for chunk in response.content.iter_any():
        rest += chunk
        *lines, last = rest.split(b"\n")
        for line in lines:
            if line.strip():
                yield bytes(line)
        rest = last
        if len(rest) > MAX_LINE_BYTES:
            raise ApiError(0, _TOO_LARGE, f"event exceeds {MAX_LINE_BYTES} bytes")


def _page(answer: KubeObject) -> ListPage:
    """The page of a list; ``ApiError`` if invalid."""
    metadata, items = answer.get("metadata"), answer.get("items") or []
    if not isinstance(metadata, dict) or not isinstance(items, list):
        raise ApiError(0, _MALFORMED, "list without metadata or items")
    if not all(isinstance(item, dict) for item in items):
        raise ApiError(0, _MALFORMED, "list item is not an object")
    return ListPage(
        items=tuple(items),
        resource_version=str(metadata.get("resourceVersion", "")),
        more=str(metadata.get("continue") or ""),
    )


def _event(line: bytes) -> WatchEvent:
    """The event in a line; ``ApiError`` if it is an error event."""
    said = _object(line)
    kind, about = said.get("type"), said.get("object")
    if not isinstance(about, dict) or not isinstance(kind, str):
        raise ApiError(0, _MALFORMED, "event without type or object")
    if kind == "ERROR":
        code = about.get("code")
        status = code if isinstance(code, int) else 0
        raise ApiError(status, str(about.get("reason", "")), str(about.get("message", "")))
    return WatchEvent(type=kind, object=about)


def _object(content: bytes) -> KubeObject:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError) as error:
        # JSON nested a thousand levels deep is valid, but exceeds Python's recursion limit.
        raise ApiError(0, _MALFORMED, f"answer is not JSON: {error}") from error
    if not isinstance(said, dict):
        raise ApiError(0, _MALFORMED, "answer is not an object")
    return said


def _refusal(response: aiohttp.ClientResponse, content: bytes) -> ApiError:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        said = {}
    if not isinstance(said, dict):
        said = {}
    after = response.headers.get("Retry-After", "")
    return ApiError(
        response.status,
        str(said.get("reason") or response.reason or ""),
        str(said.get("message") or content[:200].decode(errors="replace")),
        retry_after_s=min(float(after), MOST_RETRY_AFTER_S) if after.isdecimal() else None,
    )


def _unanswered(error: BaseException) -> ApiError:
    return ApiError(0, type(error).__name__, str(error) or "timeout")
