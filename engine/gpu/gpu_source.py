"""Current readings of an engine's GPUs: two threads read, and ``read`` never blocks.

The reader thread reads all GPUs once per interval; the event thread waits for XIDs and latches them. A hung driver
blocks a thread, never the caller: the last results keep their times, and the blocked call is named. Both threads
are daemons, so a hung driver cannot keep the process alive.

A missing NVML or device is retried: drivers may load late.
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
    """Intervals and deadlines of a ``GpuSource``."""

    interval_s: float = 1.0
    """Seconds between rounds over all GPUs."""

    wear_interval_s: float = 30.0
    """Seconds between readings of wear, such as retired pages."""

    call_deadline_s: float = 1.0
    """Longer driver calls count as blocked."""

    reopen_s: float = 30.0
    """Seconds before retrying NVML or a missing device."""

    growth_window_s: float = 300.0
    """Window of ``GpuCounterGrowth``."""

    event_wait_ms: int = 500
    """Longest single wait for XIDs."""


DEFAULT_SAMPLING: Final = GpuSampling()


class GpuSource:
    """Read the GPUs ``devices``: open, ``read``, close.

    ``devices`` are NVML indexes or UUIDs of the engine's ranks, in rank order; empty: every GPU of the machine.
    ``on_xid`` is called from the event thread for each XID; it must not block.
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
        self._stop = threading.Event()  # final
        self._over = threading.Event()  # for the current devices
        self._swap = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._now = GpuReadings(state=NvmlState.OPENING, statement="NVML is loading")

    def open(self) -> None:
        """Start the threads; returns at once."""
        self._start("gpu-reader", self._run)

    def close(self, *, timeout_s: float = 2.0) -> bool:
        """True if both threads ended in time; a thread blocked by the driver ends with the process."""
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
        """Current readings; never blocks or raises."""
        if self._threads and not self._threads[0].is_alive() and not self._stop.is_set():
            statement = "the GPU reader crashed (see the log); GPU health unknown"
            return GpuReadings(state=NvmlState.ABSENT, statement=statement)
        calling = self._nvml.watch.calling
        if calling is None or self._clock() - calling.since_s < self._sampling.call_deadline_s:
            return self._now
        return replace(self._now, blocked=calling)

    def xids(self) -> tuple[XidRecord, ...]:
        """All remembered XIDs; the policy limits how long each counts."""
        return self._latch.records()

    def engine_restarted(self) -> int:
        """Forget XIDs that a restart fixes; return their number."""
        return self._latch.forget(lambda record: xid_rule(record.code, {}).fixed_by_restart)

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
        """Read ``found`` until closed, or until one of ``missing`` appears."""
        log.info("gpu.present", driver=version, gpus=len(found), missing=[each.name for each in missing])
        self._now = GpuReadings(
            state=NvmlState.PRESENT,
            statement=f"NVML available, driver {version}, {len(found)} GPU(s)",
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
        if not events.is_alive():  # never unload the library under a waiting thread
            self._threads.remove(events)
            self._release()

    def _reading(self, device: Device) -> GpuReading:
        """Read one GPU; wear only when due."""
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
        """Wait for XIDs until ``over``; errors go to ``GpuReadings.events`` and are retried."""
        while not over.is_set():
            try:
                wait = self._nvml.listen(devices)
            except NvmlError as error:
                self._events(f"no XID events: {error}")
                over.wait(self._sampling.reopen_s)
                continue
            silent = sorted({device.identity.rank for device in devices} - set(wait.ranks))
            self._events(f"no XIDs from rank(s) {silent}" if silent else "")
            try:
                while not over.is_set():
                    for event in wait.next(self._sampling.event_wait_ms):
                        self._take(event)
            except WaitError as error:
                self._events(f"no XID events: {error}")
            finally:
                wait.close()
            over.wait(self._sampling.interval_s)

    def _take(self, event: XidEvent) -> None:
        record = self._latch.record(event)
        if record.count == 1:  # log repeated XIDs once
            log.warning("gpu.xid", code=event.code, rank=event.rank, meaning=xid_rule(event.code, {}).meaning)
        if self._on_xid is not None:
            self._on_xid(event)

    def _events(self, statement: str) -> None:
        with self._swap:
            changed, self._now = self._now.events != statement, replace(self._now, events=statement)
        if changed:
            log.info("gpu.events", statement=statement or "receiving XIDs")

    def _absent(self, why: str) -> None:
        statement = f"NVML unavailable: {why}; GPU health unknown"
        if self._now.statement != statement:
            log.warning("gpu.absent", reason=why)
        self._now = GpuReadings(state=NvmlState.ABSENT, statement=statement)

    def _release(self) -> None:
        try:
            self._nvml.close()
        except NvmlError as error:
            log.warning("gpu.close", reason=str(error))
