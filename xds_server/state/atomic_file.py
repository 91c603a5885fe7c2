"""Atomic files: complete or absent, even if the process dies while writing.

Content goes to a temporary file in the same folder, which then replaces the old file in one step. Temporary files
of killed processes are removed by the next reader.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

RETRY_S: Final = 10.0
"""Retry interval after a failed write: once the disk has room again, everything acknowledged is saved."""


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step, by default readable by this user only; on ``OSError`` the old file stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp creates with 0600; in the same folder, so that the rename is atomic.
    handle, name = tempfile.mkstemp(prefix=_prefix(path), dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def json_lines(content: Mapping[str, Any]) -> str:
    """JSON with one line per value, readable for people.

    Without ``indent``, which is implemented by mutually referring Python functions and leaves about 30 objects per
    call to the cycle collector.
    """
    return json.dumps(content, separators=(",\n", ": "))


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes for this path; what cannot be removed stays."""
    try:
        left = [entry.path for entry in os.scandir(path.parent) if entry.name.startswith(_prefix(path))]
        for name in left:
            Path(name).unlink(missing_ok=True)
    except OSError:
        return  # unreadable or read-only folder: the writer reports it


def format_mismatch(found: object, read: object) -> str:
    """The sentence about a file in a format that this version does not read."""
    return f"format {found!r}; this version reads {read!r}: run the version that wrote it, or move the file away"


def _prefix(path: Path) -> str:
    return f".{path.name}."


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
