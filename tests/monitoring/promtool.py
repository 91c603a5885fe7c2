"""Run promtool, if installed (Debian package ``prometheus``)."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

PROMTOOL = shutil.which("promtool")
LIMIT_S: Final = 600.0
"""Above the limit of other tests: promtool evaluates hours minute by minute."""

T = TypeVar("T", bound=Callable[..., Any])


def needed(test: T) -> T:
    """Skip the test without promtool, and raise its time limit."""
    missing = pytest.mark.skipif(PROMTOOL is None, reason="promtool not installed (Debian package prometheus)")
    marked: T = missing(pytest.mark.timeout(LIMIT_S + 60)(test))
    return marked


def promtool(*arguments: str, stdin: str = "", cwd: Path | None = None) -> tuple[int, str]:
    """Exit code and output."""
    assert PROMTOOL is not None
    answer = subprocess.run(
        [PROMTOOL, *arguments], input=stdin, capture_output=True, text=True, check=False, cwd=cwd, timeout=LIMIT_S
    )
    return answer.returncode, answer.stdout + answer.stderr
