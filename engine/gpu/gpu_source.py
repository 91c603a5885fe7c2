"""The GPUs of one engine, always at hand: two threads ask, and ``read`` never waits.

The reader thread goes round the GPUs once per interval and leaves each result behind; the event thread waits for
XIDs and latches them. A driver that hangs holds one of these threads, never the caller: the results stay as they
were, with the time they were read, and the call that holds the thread is named. Both threads are daemons, so that
a hung driver cannot keep the process alive either.

What is absent, NVML or a configured device, is asked for again now and then: drivers are loaded late.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

import structlog

from engine.gpu.gpu_reading_history import GpuReadingHistory
from engine.gpu.gpu_readings import EVENTS_NOT_YET, GpuReading, GpuReadings, MissingDevice, NvmlState
from engine.gpu.nvml import Device, Nvml
from engine.gpu.nvml_calls import NvmlError, WaitError
from engine.gpu.xid import xid_rule
from engine.gpu.xid_events import XidEvent, XidLatch, XidRecord

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSampling:
    """How often a ``GpuSource`` reads the driver, and how long it waits for it."""

    interval_s: float = 1.0
    """Between two rounds of all GPUs."""

    wear_interval_s: float = 30.0
    """Between two reads of the wear of a GPU, such as its retired pages."""

    call_deadline_s: float = 1.0
    """A call into the driver that takes longer is shown as blocked."""

    reopen_s: float = 30.0
    """Before NVML, or a device that was missing, is tried again."""

    growth_window_s: float = 300.0
    """The span that ``Growth`` covers."""

    event_wait_ms: int = 500
    """The longest a single wait for XIDs lasts."""


DEFAULT_SAMPLING: Final = GpuSampling()


class GpuSource:
    """Read the GPUs ``devices``: open it, ``read`` it as often as you like, close it.

    ``devices`` are NVML indexes or UUIDs of the engine's ranks, in rank order; none means every GPU of the
    machine. ``on_xid`` is called from the event thread at once for each XID; it must not block.
    """

    def __init__(
        self,
        *,
        devices: Sequence[str] = (),
        sampling: GpuSampling = DEFAULT_SAMPLING,
        on_xid: Callable[[XidEvent], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted = tuple(devices)
        self._sampling = sampling
        self._on_xid = on_xid
        self._clock = clock
        self._nvml = Nvml(clock)
        self._latch = XidLatch()
        self._memory: dict[int, GpuReadingHistory] = {}
        self._stop = threading.Event()  # for good
        self._over = threading.Event()  # for the devices found now
        self._swap = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._now = GpuReadings(
            state=NvmlState.OPENING, statement="NVML has been asked for and has not answered yet"
        )

    def open(self) -> None:
        """Start asking; returns at once."""
        self._start("gpu-reader", self._run)

    def close(self, *, timeout_s: float = 2.0) -> bool:
        """Whether both threads ended in time; one that a hung driver holds is left to end with the process."""
        self._stop.set()
        self._over.set()
        deadline_s = self._clock() + timeout_s
        for thread in tuple(self._threads):
            thread.join(max(0.0, deadline_s - self._clock()))
        return not any(thread.is_alive() for thread in tuple(self._threads))

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self) -> GpuReadings:
        """What is known now, at once; never raises."""
        if self._threads and not self._threads[0].is_alive() and not self._stop.is_set():
            statement = (
                "the GPU reader ended by an error of its own (see the log); the health of the GPUs is unknown"
            )
            return GpuReadings(state=NvmlState.ABSENT, statement=statement)
        calling = self._nvml.watch.calling
        if calling is None or self._clock() - calling.since_s < self._sampling.call_deadline_s:
            return self._now
        return replace(self._now, blocked=calling)

    def xids(self) -> tuple[XidRecord, ...]:
        """Every XID that came and was not forgotten; how long it counts is the policy's to say."""
        return self._latch.records()

    def engine_restarted(self) -> int:
        """How many XIDs a new engine process leaves behind: those that a restart mends."""
        return self._latch.forget(lambda record: xid_rule(record.code, {}).restart_mends)

    def _start(self, name: str, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                version = self._nvml.open()
            except NvmlError as error:
                self._absent(str(error))
                self._stop.wait(self._sampling.reopen_s)
                continue
            try:
                found, missing = self._nvml.devices(self._wanted)
            except NvmlError as error:
                self._absent(str(error))
                self._release()
                self._stop.wait(self._sampling.reopen_s)
                continue
            self._look_after(version, found, missing)

    def _look_after(self, version: str, found: tuple[Device, ...], missing: tuple[MissingDevice, ...]) -> None:
        """Read ``found`` until the end, or until one of ``missing`` has turned up."""
        log.info("gpu.present", driver=version, gpus=len(found), missing=[each.name for each in missing])
        self._now = GpuReadings(
            state=NvmlState.PRESENT,
            statement=f"NVML answers, driver {version}, {len(found)} GPU(s)",
            driver_version=version,
            ranks=len(found),
            missing=missing,
            events=EVENTS_NOT_YET,
        )
        self._over = threading.Event()
        events = self._start("gpu-events", lambda: self._listen(found, self._over))
        look_again_s = self._clock() + self._sampling.reopen_s
        while not self._stop.is_set():
            started_s = self._clock()
            for device in found:
                if self._stop.is_set():
                    break
                self._publish(self._reading(device))
            if missing and self._clock() >= look_again_s:
                if self._nvml.devices([each.name for each in missing])[0]:
                    break
                look_again_s = self._clock() + self._sampling.reopen_s
            self._stop.wait(max(0.0, self._sampling.interval_s - (self._clock() - started_s)))
        self._over.set()
        events.join(self._sampling.event_wait_ms / 1000 + 1.0)
        if not events.is_alive():  # never shut the library down under a thread that waits in it
            self._threads.remove(events)
            self._release()

    def _reading(self, device: Device) -> GpuReading:
        """One GPU, asked now; wear only when its turn has come."""
        memory = self._memory.setdefault(device.identity.rank, GpuReadingHistory(self._sampling.growth_window_s))
        if memory.wear_is_older_than(self._sampling.wear_interval_s, self._clock()):
            wear, look = self._nvml.wear(device)
            memory.keep(wear, look, self._clock())
        vitals, look = self._nvml.vitals(device)
        return memory.reading(device.identity, vitals, look, self._clock())

    def _publish(self, reading: GpuReading) -> None:
        others = (gpu for gpu in self._now.gpus if gpu.identity.rank != reading.identity.rank)
        gpus = sorted((*others, reading), key=lambda gpu: gpu.identity.rank)
        with self._swap:
            self._now = replace(self._now, gpus=tuple(gpus))

    def _listen(self, devices: tuple[Device, ...], over: threading.Event) -> None:
        """Wait for XIDs until ``over``; what goes wrong is said in ``GpuReadings.events`` and tried again."""
        while not over.is_set():
            try:
                wait = self._nvml.listen(devices)
            except NvmlError as error:
                self._events(f"XIDs are not listened for: {error}")
                over.wait(self._sampling.reopen_s)
                continue
            silent = sorted({device.identity.rank for device in devices} - set(wait.ranks))
            self._events(f"no XIDs from rank(s) {silent}" if silent else "")
            try:
                while not over.is_set():
                    for event in wait.next(self._sampling.event_wait_ms):
                        self._take(event)
            except WaitError as error:
                self._events(f"XIDs are not listened for: {error}")
            finally:
                wait.close()
            over.wait(self._sampling.interval_s)

    def _take(self, event: XidEvent) -> None:
        record = self._latch.record(event)
        if record.count == 1:  # a storm of one XID is one line
            log.warning("gpu.xid", code=event.code, rank=event.rank, meaning=xid_rule(event.code, {}).meaning)
        if self._on_xid is not None:
            self._on_xid(event)

    def _events(self, statement: str) -> None:
        with self._swap:
            changed, self._now = self._now.events != statement, replace(self._now, events=statement)
        if changed:
            log.info("gpu.events", statement=statement or "listening for XIDs")

    def _absent(self, why: str) -> None:
        statement = f"NVML is absent: {why}; the health of the GPUs is unknown"
        if self._now.statement != statement:
            log.warning("gpu.absent", reason=why)
        self._now = GpuReadings(state=NvmlState.ABSENT, statement=statement)

    def _release(self) -> None:
        try:
            self._nvml.close()
        except NvmlError as error:
            log.warning("gpu.close", reason=str(error))
