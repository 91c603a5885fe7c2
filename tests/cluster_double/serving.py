"""The double on a port: HTTP around the cluster, streams of watches, troubles, and a kubeconfig that leads to it.

Paths below ``/_double`` are the double's own, no cluster has them: ``POST /_double/troubles`` sets what is wrong,
``/_double/reset-watches``, ``/_double/expire`` and ``/_double/bookmark`` do once what they say.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

import yaml
from aiohttp import web

from chaos.processes import free_ports
from tests.cluster_double import rules
from tests.cluster_double.asking import Request, too_old
from tests.cluster_double.cluster import Answer, Cluster
from tests.cluster_double.controllers import Controllers
from tests.cluster_double.discovery import VERSION
from tests.cluster_double.json_object import Object
from tests.cluster_double.refusal import RefusedError
from tests.cluster_double.troubles import RETRY_AFTER_S, Troubles, troubles
from tests.cluster_double.watching import Watching

BOOKMARK_EVERY_S: Final = 60.0
_LARGEST_BODY: Final = 8 * 1024 * 1024
_OWN: Final = "/_double"


class ClusterDouble:
    """A double of a Kubernetes API server, listening while its ``async with`` block lasts."""

    def __init__(
        self,
        *,
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        bookmark_every_s: float = BOOKMARK_EVERY_S,
        controllers: bool = True,
    ) -> None:
        self.cluster = Cluster(now=lambda: datetime.now(UTC), rng=Random(seed))
        self.troubles = Troubles()
        self._host = host
        self._port = port
        self._bookmark_every_s = bookmark_every_s
        self._controllers = Controllers(self.cluster) if controllers else None
        # Replaced at each change: waiters wait for the next one.
        self._moved = asyncio.Event()
        self._bookmarks = 0
        self._streams: set[asyncio.Task[object]] = set()
        self._runner: web.AppRunner | None = None
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def server(self) -> str:
        """Where it listens."""
        return f"http://{self._host}:{self._port}"

    async def __aenter__(self) -> "ClusterDouble":
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()
        for timer in self._timers:
            timer.cancel()

    async def up(self) -> None:
        """Listen; again at the same port after ``down``."""
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_route("*", "/{rest:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        # Not a kernel-assigned port: while the fake is down, another process could get it.
        self._port = self._port or free_ports(1)[0]
        await web.TCPSite(self._runner, self._host, self._port, reuse_address=True).start()

    async def down(self) -> None:
        """Listen no longer, as a server that is gone; what it keeps stays."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self.reset_watches()
            await runner.cleanup()

    def trouble(self, wrong: Troubles) -> None:
        """Have this be wrong from now on; ``Troubles()`` ends it."""
        self.troubles = wrong
        self._stir()

    def reset_watches(self) -> int:
        """Break every watch off, as a connection that is reset; how many there were."""
        streams = tuple(self._streams)
        for stream in streams:
            stream.cancel()
        return len(streams)

    def expire(self) -> None:
        """Discard all versions before now: watching from one, or continuing a list, gets 410."""
        self.cluster.journal.compact()

    def bookmark(self) -> None:
        """Send a bookmark to all watches that want them."""
        self._bookmarks += 1
        self._stir()

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._streams)

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig for this server, without credentials."""
        path.write_text(kubeconfig(self.server))
        return path

    def ask(self, request: Request) -> Answer:
        """Answer a request as if it had come over HTTP, without any trouble."""
        answer = self.cluster.answer(request)
        self._after(request)
        return answer

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith(_OWN):
            return await self._own(request)
        if (refused := await self._troubled(request.path)) is not None:
            return _rendered(refused)
        asked = Request(
            method=request.method,
            path=request.path,
            query=dict(request.query),
            content_type=request.content_type,
            accept=request.headers.get("Accept", ""),
            agent=request.headers.get("User-Agent", "unknown"),
            body=await request.read(),
        )
        if asked.method == "GET" and asked.query.get("watch") in {"true", "1"}:
            return await self._watch(request, asked)
        return _rendered(self.ask(asked))

    async def _troubled(self, path: str) -> Answer | None:
        """Wait as long as troubles last; what a request is refused by, if it is."""
        while self.troubles.silent and self.troubles.concerns(path):
            await self._moved.wait()
        if not self.troubles.concerns(path):
            return None
        if self.troubles.delay_s:
            await asyncio.sleep(self.troubles.delay_s)
        wrong = self.troubles
        if not wrong.too_many and not wrong.failing:
            return None
        self.troubles = wrong.one_less()
        refused = (
            RefusedError(429, "TooManyRequests", "too many requests, please try again later",
                         retry_after_s=RETRY_AFTER_S)
            if wrong.too_many
            else RefusedError(500, "InternalError", "an error on the server has prevented the request")
        )  # fmt: skip
        return Answer(code=refused.code, body=refused.status(), retry_after_s=refused.retry_after_s)

    async def _watch(self, request: web.Request, asked: Request) -> web.StreamResponse:
        try:
            watching = self.cluster.watching(asked)
        except RefusedError as refused:
            return _rendered(Answer(code=refused.code, body=refused.status()))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        stream = asyncio.ensure_future(self._stream(response, asked.path, watching))
        self._streams.add(stream)
        try:
            await stream
        except asyncio.CancelledError:
            stream.cancel()
            if request.transport is not None:
                request.transport.abort()
            raise
        except ConnectionResetError:
            return response  # the watcher left
        finally:
            self._streams.discard(stream)
        return response

    async def _stream(self, response: web.StreamResponse, path: str, watching: Watching) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + watching.timeout_s
        bookmark_at, asked_for = loop.time() + self._bookmark_every_s, self._bookmarks
        for first in watching.first:
            await response.write(_line(first))
        event: Object | None
        revision, journal = watching.revision, self.cluster.journal
        while True:
            moved = self._moved
            if not (self.troubles.silent and self.troubles.concerns(path)):
                changes = journal.since(revision)
                if changes is None:
                    await response.write(_line({"type": "ERROR", "object": too_old(listing=False).status()}))
                    break
                for change in changes:
                    revision = change.revision
                    if (event := watching.told(change)) is not None:
                        await response.write(_line(event))
                over = loop.time() >= ends
                if watching.bookmarks and (over or asked_for != self._bookmarks or loop.time() >= bookmark_at):
                    bookmark_at, asked_for = loop.time() + self._bookmark_every_s, self._bookmarks
                    await response.write(_line(watching.bookmark(revision)))
                if over:
                    break
            wake = ends if self.troubles.silent else min(ends, bookmark_at)
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it can swallow a reset that meets the end of the wait.
                async with asyncio.timeout(max(0.0, wake - loop.time()) if loop.time() < ends else 0.05):
                    await moved.wait()
        await response.write_eof()

    async def _own(self, request: web.Request) -> web.Response:
        body = await request.read()
        match request.method, request.path.removeprefix(_OWN):
            case "GET", "" | "/":
                return web.json_response({**VERSION, "rules": rules.asked(), "watches": self.watches})
            case "POST", "/troubles":
                try:
                    self.trouble(troubles(json.loads(body or b"{}")))
                except (ValueError, AttributeError) as error:
                    return web.json_response({"error": str(error)}, status=400)
            case "POST", "/reset-watches":
                self.reset_watches()
            case "POST", "/expire":
                self.expire()
            case "POST", "/bookmark":
                self.bookmark()
            case _:
                return web.json_response({"error": "the double has no such thing"}, status=404)
        return web.json_response({"done": True})

    def _after(self, request: Request) -> None:
        """What a cluster does by itself after a write, and the word to all who watch."""
        if request.method == "GET":
            return
        if self._controllers is not None:
            for key, after_s in self._controllers.run():
                self._timers.add(asyncio.get_running_loop().call_later(after_s, self._end, key))
        self._stir()

    def _end(self, key: tuple[str, str, str]) -> None:
        self.cluster.end(key)
        self._after(Request(method="DELETE", path=""))

    def _stir(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


def kubeconfig(server: str, *, user: Object | None = None, cluster: Object | None = None) -> str:
    """A kubeconfig with one context, which leads to a server."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": {"server": server, **(cluster or {})}}],
            "users": [{"name": "user", "user": user or {}}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "user"}}],
            "current-context": "cluster",
        },
        sort_keys=False,
    )


@asynccontextmanager
async def running(kubeconfig_at: Path) -> AsyncIterator[ClusterDouble]:
    """A double, and a kubeconfig written for it."""
    async with ClusterDouble() as double:
        double.write_kubeconfig(kubeconfig_at)
        yield double


def _rendered(answer: Answer) -> web.Response:
    response = web.json_response(answer.body, status=answer.code)
    for said in answer.warnings:
        escaped = said.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')
    if answer.retry_after_s is not None:
        response.headers["Retry-After"] = str(answer.retry_after_s)
    return response


def _line(event: Object) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
