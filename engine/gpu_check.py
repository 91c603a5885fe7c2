"""Deep check: verify that a GPU computes correctly, in a killable child with a deadline per stage.

The parent never imports torch or touches the GPU. It starts ``gpu/compute_child.py`` per GPU, follows its stages
and kills it when a stage exceeds its deadline; the stage names what was stuck. Wrong result, stuck kernel, out of
memory and broken CUDA context are separate outcomes with separate actions.

The check needs about 160 MiB of GPU memory plus a CUDA context (a few hundred MiB), which an engine with
``--gpu-memory-utilization`` below 1 leaves free.

Manual run: ``python -m engine.gpu_check [--device cpu] [--python /path/to/engine/bin/python]``.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

_LONGEST_MS: Final = 86_400_000.0
_CHILD: Final = Path(__file__).parent / "gpu" / "compute_child.py"


class CheckOutcome(StrEnum):
    """Outcome of a deep check."""

    OK = "ok"
    WRONG_RESULT = "wrong_result"  # silent corruption
    STUCK = "stuck"  # context, kernel or copy did not finish
    OUT_OF_MEMORY = "out_of_memory"  # no memory for the check: no statement about the GPU
    CONTEXT_ERROR = "context_error"  # CUDA error
    CRASHED = "crashed"  # process died without a result
    UNAVAILABLE = "unavailable"  # no torch, no device or exclusive mode: not checked


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCheck:
    """One deep check. ``gpu_ms`` is device time by CUDA events, None if unfinished.

    ``stage`` is the last one entered; ``checked_at_s`` is the parent's monotonic clock at the end.
    """

    rank: int
    device: str
    outcome: CheckOutcome
    evidence: str
    stage: str
    gpu_ms: float | None
    wall_s: float
    checked_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """Settings of the check; ``python`` is an interpreter with torch, e.g. the engine's."""

    python: str = sys.executable
    child: Path = _CHILD
    # Computed, not measured: 2 GFLOP in float32, 0.5 in bfloat16, below 1 ms each on a data centre GPU;
    # 2 GB of memory traffic, 2 ms at 1 TB/s; 16 MB over PCIe, 1 ms. The budget is 50 ms.
    size: int = 1024
    memory_mib: int = 64
    # Importing torch from a cold disk is slow; a context takes 1 to 2 s, more with a busy driver; a kernel waits
    # for its time slice behind the engine's.
    stage_deadline_s: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType(
            {"start": 30.0, "import": 60.0, "context": 20.0, "kernels": 5.0, "memory": 5.0, "end": 5.0}
        )
    )


async def check_gpu(
    device: str,
    settings: CheckSettings,
    *,
    rank: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> GpuCheck:
    """Deep check of ``device``: "cpu", or a GPU by NVML index or UUID, the only one its process sees.

    Ends within the sum of the stage deadlines plus 2 s, even if the process cannot be killed. Cancellation kills
    the process.
    """
    started_s = clock()
    run = _CheckProcess()
    on_gpu = device != "cpu"
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTHONUNBUFFERED": "1"}
    if on_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = device
    try:
        process = await asyncio.create_subprocess_exec(
            settings.python,
            str(settings.child),
            "cuda:0" if on_gpu else "cpu",
            str(settings.size),
            str(settings.memory_mib),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        run.end(CheckOutcome.UNAVAILABLE, f"{settings.python} cannot be started: {error.strerror}")
    else:
        try:
            await _follow(process, run, settings.stage_deadline_s)
        finally:
            await _end(process, run)
    now_s = clock()
    return GpuCheck(
        rank=rank,
        device=device,
        outcome=run.outcome or CheckOutcome.CRASHED,
        evidence=run.evidence,
        stage=run.stage,
        gpu_ms=run.gpu_ms,
        wall_s=now_s - started_s,
        checked_at_s=now_s,
    )


async def check_gpus(devices: Sequence[str], settings: CheckSettings) -> tuple[GpuCheck, ...]:
    """Deep checks in rank order, sequentially: they share CPU and disk."""
    return tuple([await check_gpu(device, settings, rank=rank) for rank, device in enumerate(devices)])


class _CheckProcess:
    """Progress of one child."""

    def __init__(self) -> None:
        self.stage = "start"
        self.outcome: CheckOutcome | None = None
        self.evidence = ""
        self.gpu_ms: float | None = None

    def end(self, outcome: CheckOutcome, evidence: str) -> None:
        self.outcome, self.evidence = outcome, evidence

    def on_line(self, line: bytes) -> None:
        """Process one line; ignore output that is not of the protocol, e.g. of a library."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        if "stage" in message:
            self.stage = str(message["stage"])
        if message.get("outcome") in tuple(CheckOutcome):
            self.end(CheckOutcome(message["outcome"]), str(message.get("detail", "")))
            self.gpu_ms = _milliseconds(message.get("gpu_ms"))


def _milliseconds(value: object) -> float | None:
    """A time from JSON; None if invalid or missing."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LONGEST_MS:
        return float(value)
    return None


async def _follow(
    process: asyncio.subprocess.Process, run: _CheckProcess, deadlines_s: Mapping[str, float]
) -> None:
    """Follow the child until it has answered, died or exceeded a deadline."""
    assert process.stdout is not None, "started with a pipe"  # noqa: S101 - for the type checker
    while run.outcome is None:
        limit_s = deadlines_s.get(run.stage, deadlines_s["end"])
        try:
            line = await asyncio.wait_for(process.stdout.readline(), limit_s)
        except TimeoutError:
            if run.stage in ("start", "import"):  # before any GPU use
                run.end(CheckOutcome.UNAVAILABLE, f"{run.stage} not finished within {limit_s:g} s")
            else:
                run.end(CheckOutcome.STUCK, f"stuck in {run.stage} for {limit_s:g} s, killed")
            return
        except ValueError:
            continue  # line above the stream limit: not of the protocol, dropped from the buffer
        if not line:
            status = await _status(process)
            run.end(CheckOutcome.CRASHED, f"the check process ended with {status} in {run.stage}")
            return
        run.on_line(line)


_ENDED_BY_ITSELF: Final = (CheckOutcome.OK, CheckOutcome.WRONG_RESULT, CheckOutcome.CRASHED)


async def _end(process: asyncio.subprocess.Process, run: _CheckProcess) -> None:
    """Kill the child. A process blocked in the driver survives SIGKILL: report it and leave it."""
    try:
        await asyncio.wait_for(process.wait(), 1.0 if run.outcome in _ENDED_BY_ITSELF else 0.0)
    except TimeoutError:
        _kill_group(process.pid)
        try:
            await asyncio.wait_for(process.wait(), 2.0)
        except TimeoutError:
            run.evidence += f"; process {process.pid} is blocked in the driver and cannot be killed"


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # already ended


async def _status(process: asyncio.subprocess.Process) -> str:
    try:
        code = await asyncio.wait_for(process.wait(), 2.0)
    except TimeoutError:
        return "its output closed"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0: all GPUs pass; 1: one fails; 2: none could be checked."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.gpu_check", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--device", action="append", help="NVML index or UUID, or cpu; repeatable (default 0)")
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch")
    args = parser.parse_args(argv)
    checks = asyncio.run(check_gpus(args.device or ["0"], CheckSettings(python=args.python)))
    for check in checks:
        time_text = "" if check.gpu_ms is None else f", {check.gpu_ms:.1f} ms on the device"
        sys.stdout.write(f"{check.device}: {check.outcome}: {check.evidence} ({check.wall_s:.1f} s{time_text})\n")
    outcomes = {check.outcome for check in checks}
    if outcomes <= {CheckOutcome.OK}:
        return 0
    return 2 if outcomes <= {CheckOutcome.OK, CheckOutcome.UNAVAILABLE, CheckOutcome.OUT_OF_MEMORY} else 1


if __name__ == "__main__":
    sys.exit(main())
