"""Agent side of ``Watch``: watchers get each change at once, and the latest report every second.

``publish`` returns at once. Each watcher has a loop that writes the latest report once the previous one is sent,
so a slow watcher costs nothing and skips older ones. Reports without an urgent change (``is_urgent``) wait for the
heartbeat.

During a drain, watchers report how many of their proxies still send to the engine; ``removal`` sums them.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
import grpc.aio

from engine.probe_state import RECOVERED_CANARIES
from engine.proto import engine_report_pb2 as pb
from engine.report import LONGEST_DRAIN_S, EngineReport
from engine.report_wire import encode

HEARTBEAT_S: Final = 0.9
"""Below 1 s, to reach watchers every second on a loaded machine too."""

MAX_WATCHERS: Final = 64
"""Limit of watchers: replicas and operators."""

CLOCK_KEY: Final = "switchgear-clock"
CERTIFICATE_KEY: Final = "switchgear-certificate"
"""Stream metadata in Unix seconds: our clock, and the validity of our certificate."""

_MAX_NAME: Final = 200

_NEW_SPEED: Final = 1.5
"""Change of an engine's speed that is news: the share of a slow engine depends on it."""

_LEAST_RUNNING: Final = 2
_SERVICE: Final = pb.DESCRIPTOR.services_by_name["EngineAgent"].full_name

WATCH: Final = f"/{_SERVICE}/Watch"
ACKNOWLEDGE: Final = f"/{_SERVICE}/Acknowledge"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalProgress:
    """Removal of the engine from proxies, summed over connected ``watchers``.

    ``heard`` of them answered the report in question or a later one. Complete: every proxy of every watcher has
    acknowledged; always true without watchers.
    """

    watchers: int
    heard: int
    proxies_total: int
    proxies_acknowledged: int

    @property
    def complete(self) -> bool:
        """Whether all proxies of all watchers have acknowledged."""
        return self.heard == self.watchers and self.proxies_acknowledged >= self.proxies_total


@dataclass(eq=False, slots=True, kw_only=True)
class _Watcher:
    wake: asyncio.Event
    progress: pb.DrainProgress | None = None


def is_urgent(before: EngineReport | None, report: EngineReport) -> bool:
    """Whether the change may affect decisions, so watchers get it at once."""
    return before is None or _gist(before) != _gist(report)


def has_new_speed(before: EngineReport | None, report: EngineReport) -> bool:
    """Whether tokens per second per running request changed so much that the engine's share should follow."""
    was, now = (None if one is None else _tokens_per_running(one) for one in (before, report))
    if was is None or now is None:
        return False
    return max(was, now) >= _NEW_SPEED * min(was, now)


def _tokens_per_running(report: EngineReport) -> float | None:
    if report.tokens_per_s is None or report.requests_in_flight is None:
        return None
    running = report.requests_in_flight - (report.requests_waiting or 0)
    return report.tokens_per_s / running if running >= _LEAST_RUNNING else None


def _gist(report: EngineReport) -> tuple[object, ...]:
    return (
        report.verdict,
        report.doubt,
        report.drain is not None,
        report.slots,
        report.model,
        tuple(reason.reading for reason in report.reasons),
        report.gpu.action if report.gpu else None,
        report.hung_ranks,
        report.adapters,
        # An ejected engine returns by its canaries, so each counts.
        min(report.canary.in_row, RECOVERED_CANARIES) if report.canary else 0,
    )


class WatchServer:
    """The service ``EngineAgent``; ``add_to`` a server of grpc.aio, then ``publish``.

    ``boot_id`` names the engine process; ``new_boot`` starts another. ``on_change`` is called when a watcher
    connects, leaves or reports a removal. ``permits`` authorizes callers. ``lasts_unix_s`` is the validity of our
    certificate, None without one.
    """

    def __init__(
        self,
        *,
        boot_id: str | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        permits: Callable[[grpc.aio.ServicerContext[Any, Any]], bool] = lambda _: True,
        lasts_unix_s: Callable[[], tuple[float, float] | None] = lambda: None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._heartbeat_s = heartbeat_s
        self._permits = permits
        self._lasts_unix_s = lasts_unix_s
        self._on_change = on_change
        self._boot_id = boot_id or secrets.token_hex(8)
        self._sequence = 0
        self._report: EngineReport | None = None
        self._paced: EngineReport | None = None
        self._data = b""
        self._watchers: dict[str, _Watcher] = {}

    @property
    def report(self) -> EngineReport | None:
        """Latest report as sent; None before the first."""
        return self._report

    @property
    def watchers(self) -> tuple[str, ...]:
        """Names of current watchers."""
        return tuple(self._watchers)

    def new_boot(self, boot_id: str | None = None) -> None:
        """Start reports of another engine process."""
        self._boot_id = boot_id or secrets.token_hex(8)
        self._sequence = 0

    def publish(self, report: EngineReport) -> EngineReport:
        """Publish a report; return it with boot id and sequence."""
        self._sequence += 1
        published = replace(report, boot_id=self._boot_id, sequence=self._sequence)
        before, self._report = self._report, published
        self._data = encode(published)
        # Watchers know a report of the last interval.
        known, faster = self._paced, has_new_speed(self._paced, published)
        if known is None or faster or published.observed_at_s - known.observed_at_s >= self._heartbeat_s:
            self._paced = published
        if faster or is_urgent(before, published) or (before is not None and before.boot_id != self._boot_id):
            for watcher in self._watchers.values():
                watcher.wake.set()
        return published

    def removal(self, since_sequence: int) -> RemovalProgress:
        """Removal from proxies, counting answers to report ``since_sequence`` or later.

        Pass the sequence of the first draining report of this boot.
        """
        heard = self._heard(since_sequence)
        return RemovalProgress(
            watchers=len(self._watchers),
            heard=len(heard),
            proxies_total=sum(one.proxies_total for one in heard),
            proxies_acknowledged=sum(min(one.proxies_acknowledged, one.proxies_total) for one in heard),
        )

    def drain_deadline_s(self, since_sequence: int) -> float | None:
        """Longest ``drain.deadline`` in answers to report ``since_sequence`` or later; None if none states it."""
        sent = [one.drain_deadline_s for one in self._heard(since_sequence) if one.HasField("drain_deadline_s")]
        return max((one for one in sent if 0 <= one <= LONGEST_DRAIN_S), default=None)

    def _heard(self, since_sequence: int) -> list[pb.DrainProgress]:
        return [
            watcher.progress
            for watcher in self._watchers.values()
            if watcher.progress is not None
            and watcher.progress.boot_id == self._boot_id
            and watcher.progress.sequence >= since_sequence
        ]

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service on this server."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Watch": grpc.unary_stream_rpc_method_handler(
                self.watch, request_deserializer=pb.WatchRequest.FromString
            ),
            "Acknowledge": grpc.unary_unary_rpc_method_handler(
                self.acknowledge,
                request_deserializer=pb.DrainProgress.FromString,
                response_serializer=pb.DrainAnswer.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))

    async def watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[pb.WatchRequest, bytes]
    ) -> AsyncIterator[bytes]:
        """Stream of reports as bytes, without a response serializer."""
        await self._admit(context)
        name = request.watcher
        if not name or len(name) > _MAX_NAME:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "watcher name required: 1 to 200 characters")
        if len(self._watchers) >= MAX_WATCHERS and name not in self._watchers:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"limit of {MAX_WATCHERS} watchers reached")
        # A known name is the same watcher on a new connection.
        watcher = self._watchers[name] = _Watcher(wake=asyncio.Event())
        self._on_change()
        try:
            await context.send_initial_metadata(self._introduction())
            while self._watchers.get(name) is watcher:
                watcher.wake.clear()
                if self._report is not None:
                    yield self._data
                if not watcher.wake.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._heartbeat_s):
                            await watcher.wake.wait()
        finally:
            if self._watchers.get(name) is watcher:
                del self._watchers[name]
                self._on_change()

    def _introduction(self) -> tuple[tuple[str, str], ...]:
        """Stream metadata for troubleshooting; not used for decisions."""
        lasts = self._lasts_unix_s()
        clock = ((CLOCK_KEY, f"{time.time():.3f}"),)
        return clock if lasts is None else (*clock, (CERTIFICATE_KEY, f"{lasts[0]:.0f} {lasts[1]:.0f}"))

    async def _admit(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if not self._permits(context):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this certificate may not watch")

    async def acknowledge(
        self,
        request: pb.DrainProgress,
        context: grpc.aio.ServicerContext[pb.DrainProgress, pb.DrainAnswer],
    ) -> pb.DrainAnswer:
        """Whether the removal reported by a watcher is still expected."""
        await self._admit(context)
        watcher = self._watchers.get(request.watcher)
        if watcher is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "acknowledge needs an open watch")
        watcher.progress = request
        self._on_change()
        draining = self._report is not None and self._report.drain is not None
        complete = request.proxies_acknowledged >= request.proxies_total
        return pb.DrainAnswer(waiting=draining and not complete)
