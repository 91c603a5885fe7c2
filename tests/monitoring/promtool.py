"""promtool, where it is there: Debian has it in its package ``prometheus``."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROMTOOL = shutil.which("promtool")

needed = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here; Debian's package prometheus has it")


def promtool(*arguments: str, stdin: str = "", cwd: Path | None = None) -> tuple[int, str]:
    """Exit code, and all that it says."""
    assert PROMTOOL is not None
    answer = subprocess.run(
        [PROMTOOL, *arguments], input=stdin, capture_output=True, text=True, check=False, cwd=cwd, timeout=600
    )
    return answer.returncode, answer.stdout + answer.stderr
