"""New lines of a file that another process writes and may rotate."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self


class LogTail:
    """``with LogTail(path) as tail``: call ``tail.new_lines()`` repeatedly.

    The file may not exist yet. If it is replaced, the rest of the old file comes before the new one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._close()

    def new_lines(self) -> list[str]:
        """Complete lines added since the last call; a partial line waits for its end."""
        lines = self._read()
        if self._replaced():
            self._close()
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            lines += self._read()
        return lines

    def _read(self) -> list[str]:
        if self._descriptor is None:
            return []
        if os.fstat(self._descriptor).st_size < os.lseek(self._descriptor, 0, os.SEEK_CUR):
            # The file was truncated.
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self._rest = b""
        while data := os.read(self._descriptor, 1 << 20):
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def _replaced(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        if self._descriptor is None:
            return True
        ours = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._rest = None, b""
