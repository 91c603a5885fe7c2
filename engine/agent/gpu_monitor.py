"""Judges the engine's GPUs every second and on each XID; runs a deep check if it can tell causes apart.

NVML runs in threads (``engine.gpu.gpu_source``), the deep check in a process: neither blocks the agent's loop.
Without NVML, GPU health is unknown and has no effect.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from engine.agent.agent_config import AgentConfig
from engine.gpu.dcgm import DcgmSource
from engine.gpu.gpu_judgement import GpuJudgement, judge_gpu
from engine.gpu.gpu_readings import GpuReadings, NvmlState
from engine.gpu.gpu_source import GpuSource
from engine.gpu.xid_events import XidEvent, XidRecord
from engine.gpu_check import CheckSettings, GpuCheck, check_gpu

log = structlog.get_logger()

_INTERVAL_S: Final = 1.0
# Minimum interval of deep checks: each needs a CUDA context and some seconds.
_CHECK_SPACE_S: Final = 300.0
_KEPT_CHECKS: Final = 64


class GpuMonitor:
    """Judges the GPUs until cancelled; ``on_judgement`` gets each judgement, ``check_soon`` requests a deep
    check.
    """

    def __init__(self, config: AgentConfig, on_judgement: Callable[[GpuJudgement], None]) -> None:
        self._config = config
        self._on_judgement = on_judgement
        self._policy = config.gpu_policy
        self._wake = asyncio.Event()
        self._checks: deque[GpuCheck] = deque(maxlen=_KEPT_CHECKS)
        self._check_wanted = bool(config.gpu_check_python)
        self._checked_at_s = float("-inf")
        self._source: GpuSource | DcgmSource | None = None

    @property
    def readings(self) -> GpuReadings:
        """Latest GPU readings."""
        if self._source is None:
            return GpuReadings(state=NvmlState.ABSENT, statement="GPUs are not read (gpu: off)")
        return self._source.read()

    @property
    def xids(self) -> tuple[XidRecord, ...]:
        """Remembered XIDs."""
        return () if self._source is None else self._source.xids()

    @property
    def checks(self) -> tuple[GpuCheck, ...]:
        """Deep checks, oldest first."""
        return tuple(self._checks)

    def check_soon(self) -> bool:
        """Request a deep check; False without a configured Python with torch."""
        self._check_wanted = bool(self._config.gpu_check_python)
        self._wake.set()
        return self._check_wanted

    def engine_restarted(self) -> None:
        """Forget XIDs fixed by the restart."""
        if self._source is not None:
            self._source.engine_restarted()
            self._wake.set()

    async def run(self) -> None:
        """Judge until cancelled."""
        loop = asyncio.get_running_loop()

        def wake(_event: XidEvent) -> None:
            loop.call_soon_threadsafe(self._wake.set)

        devices, exporter = self._config.gpu_devices, self._config.gpu_dcgm
        source = (
            DcgmSource(exporter, devices=devices, on_xid=wake)
            if exporter
            else GpuSource(devices=devices, on_xid=wake)
        )
        self._source = source
        source.open()
        checking: asyncio.Task[None] | None = None
        try:
            while True:
                self._wake.clear()
                judgement = judge_gpu(source.read(), source.xids(), self._policy, time.monotonic(), self.checks)
                self._on_judgement(judgement)
                if checking is not None and checking.done():
                    checking.result()
                    checking = None
                if checking is None and self._due(judgement):
                    checking = asyncio.create_task(self._check())
                try:
                    async with asyncio.timeout(_INTERVAL_S):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            if checking is not None:
                checking.cancel()
                await asyncio.wait([checking])
            await asyncio.to_thread(source.close)

    def _due(self, judgement: GpuJudgement) -> bool:
        if not self._config.gpu_check_python or not self.readings.gpus:
            return False
        suspicious = judgement.wants_check and time.monotonic() - self._checked_at_s >= _CHECK_SPACE_S
        return self._check_wanted or suspicious

    async def _check(self) -> None:
        """Check GPUs one by one, which slows the engine less."""
        self._check_wanted = False
        self._checked_at_s = time.monotonic()
        settings = CheckSettings(python=self._config.gpu_check_python)
        for gpu in self.readings.gpus:
            device = gpu.identity.uuid or str(gpu.identity.rank)
            check = await check_gpu(device, settings, rank=gpu.identity.rank)
            log.info("gpu.checked", rank=check.rank, outcome=check.outcome.value, evidence=check.evidence)
            self._checks.append(check)
            self._wake.set()
