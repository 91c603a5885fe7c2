"""A stand-in for ``go`` that tests of builds put into their path: scripts that build, or fail as it does."""

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tests import part_results

FAILS: Final = """#!/bin/sh
echo "go: downloading k8s.io/api" >&2
echo "go: k8s.io/api: connection refused" >&2
echo "go: downloading k8s.io/client-go" >&2
exit 1
"""


def empty_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, variables: Iterable[str]) -> Path:
    """A cache, and an environment without these variables and results; the path has only what scripts need.

    Scripts append their arguments to ``$CALLS``, the file ``calls`` in the folder.
    """
    for name in (*variables, part_results.FOLDER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("CALLS", str(folder / "calls"))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "cache"


def put_go(folder: Path, script: str) -> None:
    """Let ``go`` be this script."""
    at = folder / "go"
    at.write_text(script)
    at.chmod(at.stat().st_mode | stat.S_IXUSR)
