"""A real NVIDIA GPU: its driver through NVML, and torch in a Python of its own for work on it.

Without a GPU these tests are skipped: ``make gpu`` runs them where there is one. ``SWITCHGEAR_TORCH_PYTHON`` names
a Python with torch for CUDA; without it, that of vLLM's environment.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.real_vllm import gpu_load
from chaos.real_vllm.vllm_replica import vllm_python
from engine.gpu.nvml import Nvml
from engine.gpu.nvml_calls import NvmlError

VARIABLE = "SWITCHGEAR_TORCH_PYTHON"
LIMIT_S = 120.0
"""Longest wait for anything: a first import of torch takes tens of seconds."""
_ROOT = Path(__file__).parents[2]


@functools.cache
def missing() -> str:
    """Why tests of a real GPU cannot run here; empty if they can."""
    library = Nvml()
    try:
        library.open()
    except NvmlError as why:
        return f"no NVIDIA GPU: {why}"
    found, _ = library.devices(())
    library.close()
    return "" if found else "no NVIDIA GPU: NVML finds none"


def torch_python() -> str:
    """A Python with torch for CUDA; skips the test where there is none."""
    found = os.environ.get(VARIABLE) or str(vllm_python() or "")
    if not found:
        pytest.skip(f"no Python with torch: set {VARIABLE}")
    code = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 1)"
    if subprocess.run([found, "-c", code], check=False, capture_output=True).returncode:
        pytest.skip(f"torch of {found} finds no GPU")
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and missing():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=missing()))


_measured: list[str] = []


def note(what: str, value: object) -> None:
    """Something measured, printed at the end of the run."""
    _measured.append(f"{what:60} {value}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _measured:
        terminalreporter.section("real GPU: measured")
        for line in _measured:
            terminalreporter.write_line(line)


class GpuLoad:
    """A process that works on the GPU; ``first`` is what it printed when the work began."""

    def __init__(self, kind: str, *amount: float) -> None:
        self.process = subprocess.Popen(
            [torch_python(), gpu_load.__file__, kind, *(str(one) for one in amount)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"{kind} did not begin: {self.process.communicate()[1]}")
        self.first: dict[str, Any] = json.loads(line)

    def resume(self) -> None:
        """Let a waiting process continue."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ended(self) -> tuple[int, str]:
        """Exit status and stderr of a process that ends by itself."""
        _, errors = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, errors


@contextlib.contextmanager
def load(kind: str, *amount: float) -> Iterator[GpuLoad]:
    """Work on the GPU while the block runs."""
    working = GpuLoad(kind, *amount)
    try:
        yield working
    finally:
        working.process.kill()
        working.process.communicate()


def printed(*module: str) -> tuple[int, Any]:
    """Exit status and JSON of one of our modules run as a program."""
    done = subprocess.run(
        [sys.executable, "-m", *module],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)
