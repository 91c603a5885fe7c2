"""The fake NVML, built here, and a process that reads it through the real pynvml."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chaos.gpu_double import nvml_double

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
# Generous: what is waited for takes tens of milliseconds on an idle machine.
LIMIT_S = 60.0

HEALTHY: Mapping[str, object] = {
    **nvml_double.HEALTHY,
    "gpus": 2,
    "*.ecc_corrected": 4,
    "*.rows_uncorrectable": 1,
    "*.pid": 4242,
    "*.pid_memory": 77_000_000_000,
    "*.field82": 61,
    "*.field38": 1,
    "*.field45": 2,
    "*.field52": 3,
    "*.field59": 4,
}


class NvmlDouble:
    """One fake library with its control file; ``build_library`` may leave symbols out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._control = folder / "control"
        self._lines: dict[str, object] = {}
        self._xids = 0
        self.set(HEALTHY)

    def build(self, *, without: tuple[str, ...] = ()) -> None:
        """Compile the library; symbols in ``without`` are not exported."""
        nvml_double.build_library(self.folder, without=without)

    def set(self, lines: Mapping[str, object]) -> None:
        """Set lines of the control file; None takes one away."""
        self._lines.update(lines)
        self._lines = {key: value for key, value in self._lines.items() if value is not None}
        nvml_double.write_control(self._control, healthy=self._lines)

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
            **nvml_double.environment(self.folder, self._control),
            "PYTHONPATH": str(_ROOT),
        }


class Watched:
    """A process that holds a GpuSource and says every few milliseconds what it knows."""

    def __init__(self, environment: Mapping[str, str], settings: Mapping[str, object]) -> None:
        self._ended: tuple[int, str] | None = None
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

    def end(self) -> tuple[int, str]:
        """The exit status, and what was written to stderr; fails where there is no end within the limit."""
        if self._ended is None:
            try:
                _, errors = self._process.communicate(timeout=LIMIT_S)  # closes stdin, which is the word to end
            finally:
                self._process.kill()
            self._ended = (self._process.returncode, errors)
        return self._ended


@pytest.fixture(scope="session")
def built_double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the complete fake library."""
    folder = tmp_path_factory.mktemp("nvml")
    try:
        NvmlDouble(folder).build()
    except nvml_double.CompilerError as error:
        pytest.skip(str(error))
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
        status, errors = watched.end()
        assert status == 0, errors
        assert "Traceback" not in errors, errors
