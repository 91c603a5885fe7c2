"""promtool, where it is there: Debian has it in its package ``prometheus``."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

PROMTOOL = shutil.which("promtool")
LIMIT_S: Final = 600.0
"""It goes through hours minute by minute, which takes a busy machine longer than other tests may."""

T = TypeVar("T", bound=Callable[..., Any])


def needed(test: T) -> T:
    """The test, skipped where there is no promtool, and with promtool's time."""
    missing = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here; Debian's package prometheus has it")
    marked: T = missing(pytest.mark.timeout(LIMIT_S + 60)(test))
    return marked


def promtool(*arguments: str, stdin: str = "", cwd: Path | None = None) -> tuple[int, str]:
    """Exit code, and all that it says."""
    assert PROMTOOL is not None
    answer = subprocess.run(
        [PROMTOOL, *arguments], input=stdin, capture_output=True, text=True, check=False, cwd=cwd, timeout=LIMIT_S
    )
    return answer.returncode, answer.stdout + answer.stderr
