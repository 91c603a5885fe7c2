"""Wheel and sdist of this checkout, built without network."""

import subprocess
import sys
from pathlib import Path

from tests.shell import ROOT


def built_wheel(folder: Path, source: Path = ROOT) -> Path:
    """Build the wheel into ``folder`` and return its path."""
    return _built("wheel", folder, source)


def built_sdist(folder: Path, source: Path = ROOT) -> Path:
    """Build the sdist into ``folder`` and return its path."""
    return _built("sdist", folder, source)


def _built(target: str, folder: Path, source: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=source,
        check=True,
        capture_output=True,
        text=True,
    )
    (built,) = folder.iterdir()
    return built
