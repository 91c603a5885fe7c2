"""A size-limited file of JSON lines, written in a thread.

``write`` queues a line; a thread appends what has gathered. A full disk costs lines, which are counted, and one
log line. A full file becomes ``FILE.1``, replacing the previous one: never more than twice ``max_bytes``. A crash
may leave half a line at the end; the next run starts on a new line, and readers skip the half.
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
"""Lines that may wait for the disk: a few seconds of the worst case."""

TAIL_BYTES: Final = 8 * 1024 * 1024

_log = structlog.get_logger()


class JsonlWriter:
    """An append-only file of lines."""

    def __init__(self, path: Path, max_bytes: int, most_waiting: int = MOST_WAITING) -> None:
        """``ConfigError`` if the file holds something else, such as a policy, which must not be overwritten."""
        if path.is_dir() or not _is_ours(path):
            raise ConfigError(f"{path} is not a JSON lines file; not written. Use another path")
        self._path = path
        self._max_bytes = max_bytes
        self._most_waiting = most_waiting
        self._waiting: list[str | None] = []
        self._wake = asyncio.Event()
        self._failing = False
        self._bytes = path.stat().st_size if path.is_file() else 0
        self.lost = 0
        """Lines not written."""

    @property
    def full(self) -> bool:
        """Whether to call ``rotate``."""
        return self._bytes >= self._max_bytes

    def write(self, line: str) -> bool:
        """Queue a line; False, and counted as lost, if too many wait already."""
        if len(self._waiting) >= self._most_waiting:
            self.lost += 1
            return False
        self._waiting.append(line)
        self._bytes += len(line) + 1
        self._wake.set()
        return True

    def rotate(self) -> None:
        """Start a new file with the next line."""
        self._waiting.append(None)
        self._bytes = 0

    async def run(self) -> None:
        """Write until cancelled; what still waits then is written first."""
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
                # Later lines must not overtake a batch that is still being written.
                await asyncio.wait((writing,))
            if self._waiting:
                self._append(self._waiting)

    def _append(self, batch: Sequence[str | None]) -> None:
        """Write a batch; count what cannot be written."""
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
        """Move the full file away, and keep its permissions for the next one."""
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
    """Open a file; a new one is for this user only, whatever the umask, an existing one keeps its mode."""
    return os.open(path, flags, 0o600)


def _is_ours(path: Path) -> bool:
    """Whether lines may be appended: the file is missing, empty, or begins like ours."""
    if not path.is_file():
        return True  # do not wait for a pipe
    try:
        with path.open("rb") as file:
            return file.read(1) in (b"", b"{")
    except OSError:
        return True  # missing or unreadable: writing will report it


def rotated(path: Path) -> Path:
    """Path of the rotated file."""
    return path.with_name(f"{path.name}.1")


def tail(path: Path, most_bytes: int = TAIL_BYTES) -> list[str]:
    """The last lines of a file and of the rotated one, oldest first; empty without any."""
    lines: list[str] = []
    for one in (path, rotated(path)):
        room = most_bytes - sum(map(len, lines))
        if room <= 0 or not one.is_file():
            break
        with one.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - room))
            # Not splitlines: it also splits at U+2028 and the like, which JSON leaves unescaped in texts.
            text = file.read().decode("utf-8", "replace").removesuffix("\n")
            found = text.split("\n") if text else []
        lines = [*(found[1:] if size > room else found), *lines]
    return lines


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
