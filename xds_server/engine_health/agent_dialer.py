"""Receives reports from the agents next to engines: one connection and task each, without polling.

An agent reports each change at once and repeats its state every second. Its reports update an ``AgentState`` and
go to a callback. While an agent is heard it *covers* its engine, which then needs no probing. When its stream
breaks, falls silent, or never existed, the prober takes over until the agent is back. This module does not judge:
a lost agent is not a dead engine.

In the other direction goes the drain progress over the proxies (``send_drain_progress``).

This file is the shell: channels, timers and tasks.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Final

import grpc
import grpc.aio
import structlog

from engine.heartbeat import Heartbeat
from engine.proto import engine_report_pb2 as pb
from engine.report import EngineReport, EngineTotals, GpuSummary
from engine.report_wire import ReportDropReason, ReportError, decode, decode_totals
from engine.watch_server import ACKNOWLEDGE, WATCH
from policies.model import PolicySet
from xds_server.admin_api.status_types import AgentStatus
from xds_server.engine_health.agent_metadata import AgentMetadata, read_agent_metadata
from xds_server.engine_health.agent_state import FRESH_S, AgentState
from xds_server.engine_health.agent_target import PLAIN_TEXT, AgentCredentials, AgentTarget, agent_targets
from xds_server.model.backoff import ExponentialBackoff
from xds_server.model.drain_progress import DrainProgress
from xds_server.model.fleet import EngineId
from xds_server.model.token_bucket import RateLimit, TokenBucket, take_token

FIRST_S: Final = 1.0
"""How long a new agent covers its engine before its first report: two probes, which need not start."""

_OWN_STALLS: Final = 3
"""How often a stall of our own loop prolongs the cover of a silent agent: not forever, on a machine that is always
busy.
"""

_BACKOFF: Final = ExponentialBackoff(first_s=0.1, most_s=1.0)
_ANSWER_WITHIN_S: Final = 2.0
LINES_OF_AGENT: Final = RateLimit(burst=10, per_s=1 / 60)
"""Log lines of one event of one agent."""

TOTALS_EACH_S: Final = 5.0
"""Objectives are judged over minutes, and a histogram costs as much as the rest of a report."""

_MOST_PER_S: Final = 50
"""Messages per second that an agent may send: ten changes are a storm; a broken agent is throttled."""

_log = structlog.get_logger()


@dataclass(eq=False, slots=True, kw_only=True)
class _Link:
    """One agent: its state, and unsent messages."""

    target: AgentTarget
    heard: AgentState = field(default_factory=AgentState)
    data: bytes = b""
    heard_at_s: float = 0.0
    totals_at_s: float = -math.inf
    connected: bool = False
    covered: bool = True
    trouble: str = ""
    second: int = 0
    in_second: int = 0
    lines: dict[str, TokenBucket] = field(default_factory=dict)
    uncover: asyncio.TimerHandle | None = None
    channel: grpc.aio.Channel | None = None
    progress: DrainProgress | None = None
    told: tuple[str, DrainProgress, float | None] | None = None
    telling: bool = False
    call: "grpc.aio.UnaryStreamCall[bytes, bytes] | None" = None
    watchdog: asyncio.TimerHandle | None = None
    silent: bool = False
    renewed: bool = False
    removed: bool = False
    introduced: AgentMetadata = AgentMetadata()  # noqa: RUF009 - frozen


class AgentDialer:
    """Receives the reports of the agents in the latest policies.

    ``watch(policies)`` sets them, at any time, also before ``run``; ``run()`` receives until cancelled. Reports go
    to ``on_report`` in the event loop, and each dropped one is counted by ``on_error``. ``on_totals`` gets the
    growing counters of an engine with its boot id, each ``TOTALS_EACH_S``. ``on_coverage`` is called,
    a moment later, when ``covered`` has changed. ``watcher`` identifies this process.
    """

    def __init__(
        self,
        on_report: Callable[[EngineReport], None],
        *,
        watcher: str,
        security: AgentCredentials = PLAIN_TEXT,
        on_error: Callable[[ReportDropReason], None] = lambda _: None,
        on_coverage: Callable[[], None] = lambda: None,
        on_totals: Callable[[EngineId, str, EngineTotals], None] = lambda _engine, _boot_id, _totals: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._on_report = on_report
        self._on_error = on_error
        self._on_coverage = on_coverage
        self._on_totals = on_totals
        self._watcher = watcher
        self._security = security
        self._clock = clock
        self._wall = wall
        self._rng = random.Random()  # noqa: S311 -- spreads load, guards no secret
        self._targets: Mapping[EngineId, AgentTarget] = MappingProxyType({})
        self._drain_deadlines_s: Mapping[str, float] = {}
        self._links: dict[EngineId, _Link] = {}
        self._changed = asyncio.Event()
        self._announced = False
        self._heartbeat = Heartbeat(clock)
        self._group: asyncio.TaskGroup | None = None

    @property
    def covered(self) -> frozenset[EngineId]:
        """Engines covered by their agent, which need no probing."""
        return frozenset(key for key in self._targets if (link := self._links.get(key)) is None or link.covered)

    def agents(self) -> Mapping[EngineId, AgentStatus]:
        """Every agent that is dialled."""
        return {
            key: AgentStatus(
                authority=link.target.authority,
                connected=link.connected,
                covering=link.covered,
                boot_id=link.heard.report.boot_id if link.heard.report else "",
                trouble=link.trouble,
                clock_ahead_s=link.introduced.clock_ahead_s,
                certificate_begins_unix_s=link.introduced.certificate_begins_unix_s,
                certificate_ends_unix_s=link.introduced.certificate_ends_unix_s,
            )
            for key, link in self._links.items()
        }

    def gpu(self, key: EngineId) -> GpuSummary | None:
        """The last GPU state that the agent of an engine reported; None without."""
        link = self._links.get(key)
        if link is None or not link.data:
            return None
        return decode(link.data, pool=key.pool, engine=key.engine, received_at_s=link.heard_at_s).gpu

    def watch(self, policies: PolicySet) -> None:
        """Receive from the agents of these policies from now on; unchanged connections stay."""
        self._targets = agent_targets(policies)
        self._changed.set()
        self._drain_deadlines_s = {name: one.drain.deadline for name, one in policies.effective.items()}
        for key, link in self._links.items():
            if link.progress is not None:
                self.send_drain_progress(key, link.progress)

    def send_drain_progress(self, key: EngineId, progress: DrainProgress) -> None:
        """Send drain progress and ``drain.deadline`` to the agent of a draining engine.

        The latest wins; repetitions are skipped.
        """
        link = self._links.get(key)
        if link is None:
            return
        link.progress = progress
        if not link.telling and self._group is not None:
            link.telling = True
            self._group.create_task(self._tell(link))

    def renew(self) -> None:
        """Credentials changed: redial agents that refused the old ones; connected agents stay."""
        for link in self._links.values():
            if not link.connected and link.call is not None:
                link.renewed = True
                link.call.cancel()

    async def run(self) -> None:
        """Receive until cancelled."""
        self._heartbeat.start()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                try:
                    await self._link(group)
                finally:
                    # A group that is ending takes no more tasks, while reports may still arrive.
                    self._group = None
        finally:
            self._heartbeat.stop()

    async def _link(self, group: asyncio.TaskGroup) -> None:
        """Keep exactly one link to each agent."""
        tasks: dict[EngineId, asyncio.Task[None]] = {}
        while True:
            self._changed.clear()
            for key, link in list(self._links.items()):
                if self._targets.get(key) != link.target:
                    self._forget(link, tasks.pop(key))
            for key, target in self._targets.items():
                if key not in self._links:
                    self._links[key] = _Link(target=target)
                    tasks[key] = group.create_task(self._follow(self._links[key]))
            await self._changed.wait()

    def _forget(self, link: _Link, following: "asyncio.Task[None]") -> None:
        del self._links[link.target.key]
        link.removed = True
        if link.call is None:
            following.cancel()
        else:
            link.call.cancel()
        if link.uncover is not None:
            link.uncover.cancel()
            link.uncover = None

    # -- one agent -----------------------------------------------------------------------------------------

    async def _follow(self, link: _Link) -> None:
        """Receive, and reconnect, until cancelled."""
        self._uncover_in(link, FIRST_S)
        failures = 0
        while True:
            credentials = self._security.credentials(link.target)
            async with self._security.channel(link.target, credentials) as channel:
                link.channel = channel
                silent = False
                while not silent and credentials is self._security.credentials(link.target):
                    before = link.heard.report
                    silent = await self._listen(channel, link)
                    if link.removed:
                        return
                    failures = failures + 1 if link.heard.report is before else 0
                    most_s = _BACKOFF.wait_s(failures + 1)
                    await asyncio.sleep(self._rng.uniform(_BACKOFF.first_s / 2, most_s))

    async def _listen(self, channel: grpc.aio.Channel, link: _Link) -> bool:
        """Handle reports until the stream ends; returns whether the connection is useless: it is silent, has old
        credentials, or its agent is no longer wanted.

        While the other end is down this waits, and gRPC reconnects by itself. To end a stream, the call is
        cancelled and never this task: gRPC keeps a read that was cancelled, with the message that it was about to
        return (grpc/grpc#43360), while a read of a cancelled call ends.
        """
        link.heard = link.heard.reconnected()
        link.data, link.told = b"", None
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(WATCH)
        # An agent knows only its engine; a control plane of another region is asked for this pool.
        request = pb.WatchRequest(watcher=self._name(link), pool=link.target.key.pool)
        call = link.call = watch(request.SerializeToString(), wait_for_ready=True)
        try:
            while isinstance(data := await call.read(), bytes) and not link.removed:
                if link.watchdog is None:
                    link.heard_at_s = self._clock()
                    self._look(link)
                    link.introduced = read_agent_metadata(await call.initial_metadata(), self._wall())
                self._take(link, data)
                await self._hold_back(link)
            self._lost(link, "the agent ended the stream")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            if not link.silent:
                return True
            if not self._heartbeat.late_since(link.heard_at_s + FRESH_S / 3):
                self._lost(link, f"no report for {FRESH_S:g} s")
                return True
            # We may have been the silent side, and its reports wait to be read. It covers its engine until it had
            # time to answer again.
            link.connected = False
            if link.covered and link.uncover is None:
                self._uncover_in(link, FRESH_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                self._on_error(ReportDropReason.SIZE)
            self._lost(link, f"{error.code().name.lower()}: {error.details()}"[:200])
        finally:
            link.call, link.silent, link.renewed = None, False, False
            if link.watchdog is not None:
                link.watchdog.cancel()
                link.watchdog = None
            call.cancel()
        return False

    def _name(self, link: _Link) -> str:
        """The watcher name: an agent treats a repeated name as a reconnection, and ends the earlier stream.

        Two pools may name one agent: each receives for itself, and reports drain progress of its own proxies.
        """
        return f"{self._watcher}/{sha256(str(link.target.key).encode()).hexdigest()[:16]}"

    def _look(self, link: _Link) -> None:
        """End the stream if it is silent, else check again later: cheaper than a timer reset per report."""
        left_s, loop = link.heard_at_s + FRESH_S - self._clock(), asyncio.get_running_loop()
        if left_s > 0:
            link.watchdog = loop.call_later(left_s, self._look, link)
        elif link.call is not None:
            link.silent = True
            link.call.cancel()

    def _take(self, link: _Link, data: bytes) -> None:
        """Handle one message, and pass it on if it counts."""
        key = link.target.key
        now_s = self._clock()
        known = link.heard.report
        try:
            if known is not None and data == link.data:
                report = replace(known, observed_at_s=now_s)
            else:
                report = decode(data, pool=key.pool, engine=key.engine, received_at_s=now_s, gpus=False)
            link.heard = link.heard.after(report)
        except ReportError as error:
            self._on_error(error.flaw)
            if link.trouble != str(error):
                link.trouble = str(error)
                if self._may_log("agent.report_dropped", link):
                    _log.warning("agent.report_dropped", engine=str(key), reason=link.trouble)
            return
        link.data, link.heard_at_s = data, now_s
        if report.drain is None:
            link.told = link.progress = None
        if not link.connected or not link.covered:
            self._found(link, report)
        elif (
            known is not None and known.boot_id != report.boot_id and self._may_log("agent.engine_restarted", link)
        ):
            _log.warning("agent.engine_restarted", engine=str(key), boot_id=report.boot_id)
        if now_s - link.totals_at_s >= TOTALS_EACH_S:
            link.totals_at_s = now_s
            self._on_totals(key, report.boot_id, decode_totals(data))
        self._on_report(report)

    def _may_log(self, event: str, link: _Link) -> bool:
        """Whether a line of this event may be written now: an agent may cause it with every report."""
        left = take_token(link.lines.get(event), LINES_OF_AGENT, self._clock())
        if left is not None:
            link.lines[event] = left
        return left is not None

    async def _hold_back(self, link: _Link) -> None:
        """Limit the reading rate; flow control then slows the agent down."""
        second = int(self._clock())
        if second != link.second:
            link.second, link.in_second = second, 0
        link.in_second += 1
        if link.in_second > _MOST_PER_S:
            self._on_error(ReportDropReason.FLOOD)
            await asyncio.sleep(second + 1 - self._clock())

    # -- coverage ------------------------------------------------------------------------------------------

    def _found(self, link: _Link, report: EngineReport) -> None:
        link.connected, link.trouble = True, ""
        if link.uncover is not None:
            link.uncover.cancel()
            link.uncover = None
        if self._may_log("agent.found", link):
            _log.info("agent.found", engine=str(link.target.key), boot_id=report.boot_id)
        self._cover(link, covered=True)

    def _lost(self, link: _Link, why: str) -> None:
        if link.removed:
            return
        if link.connected and self._may_log("agent.lost", link):
            _log.warning("agent.lost", engine=str(link.target.key), reason=why)
        link.connected, link.trouble = False, why
        if link.covered and link.uncover is None:
            # Silence lasts as long as a report is valid, a broken stream is noticed at once: either way the prober
            # should take over now. Only a drain stays valid for longer.
            left_s = link.heard.drains_until_s() + FRESH_S - self._clock()
            if left_s > 0:
                self._uncover_in(link, left_s)
            else:
                self._cover(link, covered=False)

    def _uncover_in(self, link: _Link, seconds: float, *, more: int = _OWN_STALLS) -> None:
        began_s = self._clock()
        link.uncover = asyncio.get_running_loop().call_later(seconds, self._uncover, link, began_s, more)

    def _uncover(self, link: _Link, began_s: float, more: int) -> None:
        link.uncover = None
        if more and self._heartbeat.late_since(began_s):
            # Our loop stalled meanwhile: the agent's reports may wait to be read.
            self._uncover_in(link, FIRST_S, more=more - 1)
        else:
            self._cover(link, covered=False)

    def _cover(self, link: _Link, *, covered: bool) -> None:
        if link.covered is covered:
            return
        link.covered = covered
        if not self._announced:
            # A rack that goes dark is one change, not forty.
            self._announced = True
            asyncio.get_running_loop().call_soon(self._announce)

    def _announce(self) -> None:
        self._announced = False
        self._on_coverage()

    # -- sending -------------------------------------------------------------------------------------------

    async def _tell(self, link: _Link) -> None:
        """Acknowledge until the agent has the latest state, or cannot be reached."""
        try:
            while (
                (report := link.heard.report) is not None
                and link.progress is not None
                and link.channel is not None
            ):
                deadline_s = self._drain_deadlines_s.get(link.target.key.pool)
                said = (report.boot_id, link.progress, deadline_s)
                if not link.connected or said == link.told:
                    return
                message = pb.DrainProgress(
                    watcher=self._name(link),
                    boot_id=report.boot_id,
                    sequence=report.sequence,
                    proxies_total=link.progress.proxies_total,
                    proxies_acknowledged=link.progress.proxies_acknowledged,
                    drain_deadline_s=deadline_s,
                )
                acknowledge: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = link.channel.unary_unary(ACKNOWLEDGE)
                # Noted before the call: a report that ends the drain during it clears this, and the same progress
                # of the next drain is sent.
                link.told = said
                try:
                    await acknowledge(message.SerializeToString(), timeout=_ANSWER_WITHIN_S)
                except grpc.aio.AioRpcError as error:
                    # Sent again with the next report.
                    link.told = None
                    if self._may_log("agent.not_told", link):
                        _log.warning(
                            "agent.not_told",
                            engine=str(link.target.key),
                            reason=f"{error.code().name}: {error.details()}",
                        )
                    return
        finally:
            link.telling = False
