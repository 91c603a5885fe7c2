"""Go programs that tests need, built once into the cache that checkouts share (``$XDG_CACHE_HOME/switchgear``)."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

# Cold, on two cores: 12 to 25 minutes; a busy machine takes several times that.
_BUILD_LIMIT_S: Final = 5400.0


class PartsError(Exception):
    """Programs cannot be obtained; the message is one line with the reason."""


def cache(name: str) -> Path:
    """The folder of a group of programs."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "switchgear" / name


def built_into(
    at: Path, what: str, arguments: Callable[[Path], Sequence[str]], *, otherwise: str, cwd: Path | None = None
) -> Path:
    """The folder ``at`` of programs, built now if need be; ``PartsError`` with the reason if that fails.

    ``arguments``: of ``go``, for programs into a given folder, which is ``GOBIN``, too. ``otherwise``: what is
    missing without Go.
    """
    if at.is_dir():
        return at
    go = shutil.which("go")
    if go is None:
        msg = f"there is no Go to build it with, and {otherwise}"
        raise PartsError(msg)
    at.parent.mkdir(parents=True, exist_ok=True)
    with (at.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds at once would take twice as long, and as much memory
        if not at.is_dir():
            sys.stderr.write(f"building {what} in {at} (once; minutes) ...\n")
            _build(go, at, arguments, cwd)
    return at


def _build(go: str, at: Path, arguments: Callable[[Path], Sequence[str]], cwd: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=at.parent, prefix=".building-") as scratch:
        programs = Path(scratch) / "bin"
        verb, *others = arguments(programs)
        try:
            done = subprocess.run(
                ["nice", "-n", "10", go, verb, "-trimpath", *others],
                cwd=cwd,
                env={**os.environ, "CGO_ENABLED": "0", "GOBIN": str(programs)},
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=_BUILD_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            msg = f"go {verb} did not end within {_BUILD_LIMIT_S:g} s"
            raise PartsError(msg) from None
        if done.returncode:
            complaint = [
                line.strip() for line in done.stderr.splitlines() if not line.startswith("go: downloading")
            ]
            msg = f"go {verb} failed: {complaint[-1] if complaint else f'exit status {done.returncode}'}"
            raise PartsError(msg)
        programs.rename(at)
