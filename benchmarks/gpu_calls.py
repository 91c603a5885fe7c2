"""What reading a real GPU costs: each NVML call, idle and under load, and the CPU of a whole reading.

It needs an NVIDIA GPU, and ``--python`` for a Python with torch that works on it. The JSON also holds one reading,
with which tests compare the fake driver.
"""

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from chaos.real_vllm import gpu_load
from engine.gpu.__main__ import json_types
from engine.gpu.nvml import Device, Nvml
from engine.gpu.nvml_calls import NvmlCallTracker, NvmlError

_FAST_TARGET_MS: Final = 100.0
"""A tenth of the interval between readings."""


class TimedCalls(NvmlCallTracker):
    """Seconds of each call by its name."""

    def __init__(self) -> None:
        super().__init__(time.monotonic)
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call ``function`` and keep the time it took, also if it fails."""
        began_s = time.perf_counter()
        try:
            return super().call(name, function, *args)
        finally:
            self.seconds[name].append(time.perf_counter() - began_s)


def measured(library: Nvml, device: Device, rounds: int) -> dict[str, Any]:
    """Call times in microseconds, and CPU and wall time of a fast and a slow reading in milliseconds."""
    calls = TimedCalls()
    library.watch = calls
    fast: list[float] = []
    slow: list[float] = []
    cpu_s = time.process_time()
    for _ in range(rounds):
        began_s = time.perf_counter()
        library.vitals(device)
        fast.append(time.perf_counter() - began_s)
    fast_cpu_ms = (time.process_time() - cpu_s) * 1000 / rounds
    for _ in range(max(1, rounds // 10)):
        began_s = time.perf_counter()
        library.wear(device)
        slow.append(time.perf_counter() - began_s)
    return {
        "fast_ms": _spread(fast, 1e3),
        "fast_cpu_ms": fast_cpu_ms,
        "slow_ms": _spread(slow, 1e3),
        "calls_us": {name: _spread(times, 1e6) for name, times in sorted(calls.seconds.items())},
    }


def _spread(seconds: Sequence[float], unit: float) -> dict[str, float]:
    return {"p50": median(seconds) * unit, "max": max(seconds) * unit}


@contextmanager
def work(python: str) -> Iterator[None]:
    """Matrix products on the GPU while the block runs."""
    with subprocess.Popen(
        [python, gpu_load.__file__, "multiply"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as working:
        assert working.stdout is not None, "started with a pipe"
        if not working.stdout.readline():
            raise RuntimeError(f"{python} cannot work on the GPU")
        yield
        working.kill()


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0: a reading takes at most a tenth of its interval; 1: more; 2: there is no GPU."""
    parser = option_parser("gpu_calls", __doc__)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch for CUDA")
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args(argv)
    library = Nvml()
    try:
        driver = library.open()
    except NvmlError as why:
        sys.stderr.write(f"no NVIDIA GPU: {why}\n")
        return 2
    devices, _ = library.devices(())
    device = devices[0]
    vitals, fast_gaps = library.vitals(device)
    wear, slow_gaps = library.wear(device)
    found: dict[str, Any] = {"idle": measured(library, device, options.rounds)}
    with work(options.python):
        found["busy"] = measured(library, device, options.rounds)
    library.close()
    answer = {
        "gpu": device.identity.name,
        "driver": driver,
        "rounds": options.rounds,
        **found,
        "reading": {
            "vitals": json_types(asdict(vitals)),
            "wear": json_types(asdict(wear)),
            "unknown": [asdict(one) for one in (*fast_gaps.unknown, *slow_gaps.unknown)],
        },
    }
    table = result_table(
        f"NVML calls, {answer['gpu']}, driver {driver}",
        [
            ResultColumn[str](heading="call", cell=lambda name: name, left=True),
            *(
                ResultColumn[str](
                    heading=f"{state}, {part}, us",
                    cell=lambda name, state=state, part=part: _cell(found[state]["calls_us"], name, part),  # type: ignore[misc] # bound per column
                )
                for state in ("idle", "busy")
                for part in ("p50", "max")
            ),
        ],
        sorted(found["idle"]["calls_us"]),
    )
    summary = json.dumps(
        {state: {k: v for k, v in one.items() if k != "calls_us"} for state, one in found.items()}
    )
    met = all(one["fast_ms"]["p50"] <= _FAST_TARGET_MS for one in found.values())
    return publish([table, summary], options.json, answer, met=met)


def _cell(calls_us: Mapping[str, Mapping[str, float]], name: str, part: str) -> str:
    return f"{calls_us[name][part]:.0f}" if name in calls_us else "-"


if __name__ == "__main__":
    sys.exit(main())
