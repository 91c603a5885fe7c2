"""A file of lines that is written beside the loop, stays within its size, and whose troubles stay its own.

Whoever has a line hands it over and goes on; a thread writes what has gathered. A full disk costs lines, which are
counted, and one line in the log. When the file is full it becomes ``FILE.1``, the one before is dropped, and a new
one begins: never more than twice ``max_bytes``. A crash may leave half a line at the end; the next run begins on
a new one, and readers pass over the half.
"""

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from xds_server.serve_config import ConfigError

MOST_WAITING: Final = 20_000
"""Lines that may wait for the disk: some seconds of the worst there is."""

TAIL_BYTES: Final = 8 * 1024 * 1024

_log = structlog.get_logger()


class JsonlWriter:
    """One file that lines are appended to."""

    def __init__(self, path: Path, max_bytes: int, most_waiting: int = MOST_WAITING) -> None:
        """``ConfigError`` when the file holds something else, a policy say, which must stay what it is."""
        if path.is_dir() or not _is_ours(path):
            raise ConfigError(f"{path} is no file of lines of JSON: nothing is written to it; name another")
        self._path = path
        self._max_bytes = max_bytes
        self._most_waiting = most_waiting
        self._waiting: list[str | None] = []
        self._wake = asyncio.Event()
        self._failing = False
        self._bytes = path.stat().st_size if path.is_file() else 0
        self.lost = 0
        """Lines that were not written."""

    @property
    def full(self) -> bool:
        """Whether it is time for ``rotate``."""
        return self._bytes >= self._max_bytes

    def write(self, line: str) -> bool:
        """Have a line written soon; False, and counted, when too many wait already."""
        if len(self._waiting) >= self._most_waiting:
            self.lost += 1
            return False
        self._waiting.append(line)
        self._bytes += len(line) + 1
        self._wake.set()
        return True

    def rotate(self) -> None:
        """Let the lines from here on begin a new file."""
        self._waiting.append(None)
        self._bytes = 0

    async def run(self) -> None:
        """Write, for ever; what still waits at the end is written before it ends."""
        writing: asyncio.Future[None] | None = None
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                batch, self._waiting = self._waiting, []
                writing = asyncio.ensure_future(asyncio.to_thread(self._append, batch))
                await asyncio.shield(writing)
        finally:
            if writing is not None:
                # What came later must not get in front of a batch that is still being written.
                await asyncio.wait((writing,))
            if self._waiting:
                self._append(self._waiting)

    def _append(self, batch: Sequence[str | None]) -> None:
        """Write a batch; what cannot be written is counted."""
        left = sum(line is not None for line in batch)
        try:
            part: list[str] = []
            for line in batch:
                if line is None:
                    left -= self._write(part)
                    part = []
                    if self._path.is_file():
                        self._begin_anew()
                else:
                    part.append(line)
            left -= self._write(part)
        except OSError as error:
            self.lost += left
            if not self._failing:
                _log.error("file.failed", file=str(self._path), reason=error.strerror or str(error))
            self._failing = True
        else:
            if self._failing:
                _log.info("file.recovered", file=str(self._path), lost=self.lost)
            self._failing = False

    def _begin_anew(self) -> None:
        """Put the full file aside; whoever may read it may read the next one, too."""
        readers = stat.S_IMODE(self._path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH)
        self._path.replace(rotated(self._path))
        self._path.touch(mode=0o600)
        self._path.chmod(readers)

    def _write(self, lines: Sequence[str]) -> int:
        if not lines:
            return 0
        with open(self._path, "ab", opener=_private) as file:
            torn = file.tell() > 0 and not _ends_a_line(self._path)
            file.write((("\n" if torn else "") + "".join(f"{line}\n" for line in lines)).encode())
        return len(lines)


def _private(path: str, flags: int) -> int:
    """Open a file that is made for this user only, whatever the umask says; one that is there stays as it is."""
    return os.open(path, flags, 0o600)


def _is_ours(path: Path) -> bool:
    """Whether lines may be added: there is no such file, it is empty, or a line of it begins as ours do."""
    if not path.is_file():
        return True  # and a pipe is not waited for
    try:
        with path.open("rb") as file:
            return file.read(1) in (b"", b"{")
    except OSError:
        return True  # missing, or out of reach: writing will say so


def rotated(path: Path) -> Path:
    """Where the lines before the newest file are."""
    return path.with_name(f"{path.name}.1")


def tail(path: Path, most_bytes: int = TAIL_BYTES) -> list[str]:
    """The last lines of a file and of the one before it, oldest first; empty when there are none."""
    lines: list[str] = []
    for one in (path, rotated(path)):
        room = most_bytes - sum(map(len, lines))
        if room <= 0 or not one.is_file():
            break
        with one.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - room))
            # Not splitlines: it ends a line at U+2028 and its like, which JSON leaves as they are in texts.
            text = file.read().decode("utf-8", "replace").removesuffix("\n")
            found = text.split("\n") if text else []
        lines = [*(found[1:] if size > room else found), *lines]
    return lines


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
