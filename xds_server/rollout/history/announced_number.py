"""The highest version number announced: the next is higher, even if versions could not be saved.

The file is overwritten in place, which needs no room on a full disk, except on a file system that copies on write.
Written without sync: it outlives the process, not a power cut.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

import structlog

FILE_NAME: Final = "number"
FORMAT: Final = "switchgear-number/1"
_DIGITS: Final = 20
_LINE_BYTES: Final = len(FORMAT) + 1 + _DIGITS

_log = structlog.get_logger()


class AnnouncedNumber:
    """The number in a folder; without one, or where it cannot be written, only that of this process."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE_NAME
        self.number = 0

    def restore(self) -> None:
        """Read the number of earlier runs; a file that is not ours is left alone."""
        if self._path is None:
            return
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # none yet
            return
        try:
            marker, _, number = os.read(file, _LINE_BYTES).decode(errors="replace").partition(" ")
            if marker == FORMAT and number.isdecimal():
                self.number = int(number)
                return
        except OSError:
            marker = "unreadable"
        finally:
            os.close(file)
        _log.warning(
            "history.skipped", file=str(self._path), reason=f"format {marker!r}; this version reads {FORMAT!r}"
        )
        self._path = None

    def announce(self, number: int) -> None:
        """Write this number, if it is higher."""
        if number <= self.number:
            return
        self.number = number
        if self._path is None:
            return
        with contextlib.suppress(OSError):  # the writer of the versions reports it
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600)
            try:
                os.pwrite(file, f"{FORMAT} {number:0{_DIGITS}}\n".encode(), 0)
            finally:
                os.close(file)
