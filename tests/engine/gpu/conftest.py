"""The fake NVML, built with gcc, and a process that reads it through the real pynvml."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
# Generous: what is waited for takes tens of milliseconds on an idle machine.
LIMIT_S = 30.0

HEALTHY: Mapping[str, object] = {
    "driver": "570.86.15",
    "gpus": 2,
    "*.temperature0": 55,
    "*.threshold1": 90,
    "*.power_mw": 412_500,
    "*.power_limit_mw": 700_000,
    "*.throttle": 0,
    "*.clock1": 1755,
    "*.clock2": 2619,
    "*.max_clock1": 1980,
    "*.utilisation": 87,
    "*.memory_utilisation": 41,
    "*.memory_total": 85_899_345_920,
    "*.memory_used": 77_309_411_328,
    "*.memory_reserved": 603_979_776,
    "*.ecc": 1,
    "*.ecc_corrected": 4,
    "*.ecc_uncorrected": 0,
    "*.ecc_corrected_total": 9,
    "*.ecc_uncorrected_total": 1,
    "*.rows_uncorrectable": 1,
    "*.retired0": 2,
    "*.retirement_pending": 0,
    "*.links": 18,
    "*.pcie_replays": 3,
    "*.persistence": 1,
    "*.mig": 0,
    "*.pid": 4242,
    "*.pid_memory": 77_000_000_000,
    "*.field82": 61,
    "*.field38": 1,
    "*.field45": 2,
    "*.field52": 3,
    "*.field59": 4,
    "*.field230": 0,
}


class NvmlDouble:
    """One fake library with its control file; ``build`` may leave symbols out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._control = folder / "control"
        self._lines: dict[str, object] = {}
        self._xids = 0
        self.set(HEALTHY)

    def build(self, *, without: tuple[str, ...] = ()) -> None:
        """Compile the library; symbols in ``without`` are not exported."""
        script = self.folder / "symbols"
        script.write_text(_script(without))
        target = self.folder / "libnvidia-ml.so.1"
        command = ["gcc", "-shared", "-fPIC", "-O1", f"-Wl,--version-script={script}", "-o", str(target)]
        subprocess.run([*command, str(_HERE / "nvml_double.c")], check=True, capture_output=True, timeout=60)

    def set(self, lines: Mapping[str, object]) -> None:
        """Set lines of the control file; None takes one away."""
        self._lines.update(lines)
        self._lines = {key: value for key, value in self._lines.items() if value is not None}
        text = "".join(f"{key} {value}\n" for key, value in self._lines.items())
        fresh = self.folder / "control.new"
        fresh.write_text(text)
        fresh.replace(self._control)  # the library never sees half a file

    def clear(self) -> None:
        """Take every line away: a GPU that knows nothing."""
        self._lines = {}
        self.set({})

    def xid(self, gpu: int, code: int, instance: int = -1) -> None:
        """Let one XID happen; gpu -1 is a GPU the reader does not know."""
        self._xids += 1
        self.set({f"xid {self._xids}": f"{gpu} {code} {instance}"})

    def environment(self) -> dict[str, str]:
        """What makes the real pynvml load this library."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder),
            "NVML_DOUBLE": str(self._control),
            "PYTHONPATH": str(_ROOT),
        }


def _script(without: tuple[str, ...]) -> str:
    """A version script that exports all calls of the double but ``without``."""
    calls = set(re.findall(r"\bnvml[A-Z]\w+", (_HERE / "nvml_double.c").read_text(encoding="utf-8")))
    assert calls > set(without)
    return f"{{ global: {' '.join(f'{name};' for name in sorted(calls - set(without)))} local: *; }};\n"


class Watched:
    """A process that holds a GpuSource and says every few milliseconds what it knows."""

    def __init__(self, environment: Mapping[str, str], settings: Mapping[str, object]) -> None:
        self._ended: tuple[int, float, str] | None = None
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / "watched_source.py"), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(environment),
        )

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first state that ``holds``."""
        assert self._process.stdout is not None
        limit_s, state = time.monotonic() + LIMIT_S, {}
        while time.monotonic() < limit_s:
            line = self._process.stdout.readline()
            if not line:
                assert self._process.stderr is not None
                pytest.fail(f"the reader's process ended: {self._process.stderr.read()}")
            state = json.loads(line)
            if holds(state):
                return state
        pytest.fail(f"not within {LIMIT_S} s; last: {json.dumps(state['judgement'], indent=1)}")

    def states(self, count: int) -> list[dict[str, Any]]:
        """The next ``count`` states."""
        assert self._process.stdout is not None
        return [json.loads(self._process.stdout.readline()) for _ in range(count)]

    def restart_engine(self) -> None:
        """Tell the source that the engine is a new process."""
        assert self._process.stdin is not None
        self._process.stdin.write("restarted\n")
        self._process.stdin.flush()

    def end(self) -> tuple[int, float, str]:
        """The exit status, how long the end took in seconds, and what was written to stderr."""
        if self._ended is None:
            began_s = time.monotonic()
            try:
                _, errors = self._process.communicate(timeout=LIMIT_S)  # closes stdin, which is the word to end
            finally:
                self._process.kill()
            self._ended = (self._process.returncode, time.monotonic() - began_s, errors)
        return self._ended


@pytest.fixture(scope="session")
def built_double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the complete fake library."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed, so the fake NVML cannot be built")
    folder = tmp_path_factory.mktemp("nvml")
    NvmlDouble(folder).build()
    return folder


@pytest.fixture
def double(built_double: Path, tmp_path: Path) -> NvmlDouble:
    """The complete fake library with a control file of its own: two healthy GPUs."""
    shutil.copy(built_double / "libnvidia-ml.so.1", tmp_path)
    return NvmlDouble(tmp_path)


@pytest.fixture
def watch(double: NvmlDouble) -> Iterator[Callable[..., Watched]]:
    """Start readers of the double (or of another environment); each is ended and must end cleanly."""
    started: list[Watched] = []

    def start(environment: Mapping[str, str] | None = None, **settings: object) -> Watched:
        watched = Watched(double.environment() if environment is None else environment, settings)
        started.append(watched)
        return watched

    yield start
    for watched in started:
        status, _, errors = watched.end()
        assert status == 0, errors
        assert "Traceback" not in errors, errors
