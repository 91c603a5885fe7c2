"""Files that are there whole or not at all, whatever ends the process in the middle of writing them.

What is written goes to a file beside, and takes the place of the one before in one step. A process that is killed
in between leaves the file beside behind: the next one that reads sweeps it away.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

RETRY_S: Final = 10.0
"""What a disk refused is tried again so often: once there is room, nothing that somebody was told is missing."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, readable by this user only; ``OSError`` when it cannot be, and then it stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp creates with 0600; in the same folder, so that the rename is atomic.
    handle, name = tempfile.mkstemp(prefix=_prefix(path), dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def json_lines(content: Mapping[str, Any]) -> str:
    """JSON with a line for each value, for people who look into the file.

    Not by ``indent``: that is done in Python, by functions which refer to each other, so that each call leaves
    some thirty objects to the collector of cycles.
    """
    return json.dumps(content, separators=(",\n", ": "))


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left beside this file; what cannot be removed stays."""
    try:
        left = [entry.path for entry in os.scandir(path.parent) if entry.name.startswith(_prefix(path))]
        for name in left:
            Path(name).unlink(missing_ok=True)
    except OSError:
        return  # a folder that cannot be read or written to: whoever writes says so


def format_mismatch(found: object, read: object) -> str:
    """What is said of a file whose format is not the one that this version reads."""
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
