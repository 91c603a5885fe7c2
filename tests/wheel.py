"""The wheel of this checkout, built without network."""

import subprocess
import sys
from pathlib import Path

from tests.shell import ROOT


def built_wheel(folder: Path) -> Path:
    """Build the wheel into ``folder`` and return its path."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    (built,) = folder.glob("*.whl")
    return built
