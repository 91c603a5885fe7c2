"""``python -m engine.gpu``: GPU readings and judgement as JSON, once or per interval."""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import structlog

from engine.gpu.gpu_judgement import GpuJudgement, judge_gpu
from engine.gpu.gpu_policy import GpuPolicy
from engine.gpu.gpu_readings import EVENTS_NOT_YET, GpuReadings, NvmlState
from engine.gpu.gpu_source import GpuSampling, GpuSource
from engine.gpu.xid_events import XidRecord


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0: no fault; 1: fault; 2: NVML unavailable."""
    parser = argparse.ArgumentParser(prog="python -m engine.gpu", description="Print GPU readings as JSON.")
    parser.add_argument("--device", action="append", default=[], help="NVML index or UUID; repeatable")
    parser.add_argument("--interval-s", type=float, default=1.0)
    parser.add_argument("--follow", action="store_true", help="one line per interval until stopped")
    parser.add_argument("--wait-s", type=float, default=5.0, help="seconds to wait for the first reading")
    asked = parser.parse_args(argv)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    policy = GpuPolicy()
    with GpuSource(devices=asked.device, sampling=GpuSampling(interval_s=asked.interval_s)) as source:
        until_s = time.monotonic() + asked.wait_s
        while not _complete(source.read()) and time.monotonic() < until_s and not asked.follow:
            time.sleep(0.01)
        while True:
            readings, xids = source.read(), source.xids()
            judgement = judge_gpu(readings, xids, policy, time.monotonic())
            sys.stdout.write(
                json.dumps(json_record(readings, xids, judgement), indent=None if asked.follow else 2) + "\n"
            )
            sys.stdout.flush()
            if not asked.follow:
                break
            time.sleep(asked.interval_s)
    if readings.state is not NvmlState.PRESENT:
        return 2
    return 1 if judgement.evidence else 0


def json_record(readings: GpuReadings, xids: Sequence[XidRecord], judgement: GpuJudgement) -> dict[str, Any]:
    """Readings, XIDs and judgement as JSON types."""
    parts = {"readings": asdict(readings), "xids": [asdict(each) for each in xids], "judgement": asdict(judgement)}
    return {name: json_types(part) for name, part in parts.items()}


def _complete(readings: GpuReadings) -> bool:
    if readings.state is NvmlState.PRESENT:
        return len(readings.gpus) == readings.ranks and readings.events != EVENTS_NOT_YET
    return readings.state is NvmlState.ABSENT


def json_types(value: Any) -> Any:
    """``value`` as JSON types: sets become sorted lists, keys become strings."""
    if isinstance(value, Mapping):
        return {str(key): json_types(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(json_types(each) for each in value)
    if isinstance(value, list | tuple):
        return [json_types(each) for each in value]
    return value


if __name__ == "__main__":
    sys.exit(main())
