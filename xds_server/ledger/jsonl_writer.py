"""A size-limited file of JSON lines, written in a thread.

``write`` queues a line; a thread appends what has gathered. What a full disk or a lack of descriptors refuses
waits and is retried, each line whole; lines beyond ``MOST_WAITING`` are dropped and counted. A full file becomes
``FILE.1``, replacing the previous one: never more than twice ``max_bytes``. A crash may leave half a line at the
end; the next run starts on a new line, and readers skip the half.
"""

import asyncio
import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from xds_server.serve_config import ConfigError

MOST_WAITING: Final = 20_000
"""Lines that may wait for the disk: a few seconds of the worst case."""

MOST_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Bytes that may wait for the disk; one line more may begin below it."""

RETRY_S: Final = 1.0
"""Time between attempts to write what was refused."""

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
        self._writing: Sequence[str | None] = ()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._failing = False
        self._bytes = path.stat().st_size if path.is_file() else 0
        self.lost = 0
        """Lines not written, and no longer waiting."""

    @property
    def full(self) -> bool:
        """Whether to call ``rotate``."""
        return self._bytes >= self._max_bytes

    def write(self, line: str) -> bool:
        """Queue a line; False, and counted as lost, if too many wait already."""
        if (
            len(self._waiting) + len(self._writing) >= self._most_waiting
            or self._waiting_bytes >= MOST_WAITING_BYTES
        ):
            self.lost += 1
            return False
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        self._bytes += len(line) + 1
        self._wake.set()
        return True

    def rotate(self) -> None:
        """Start a new file with the next line."""
        self._waiting.append(None)
        self._bytes = 0

    async def run(self) -> None:
        """Write until cancelled; what still waits then is tried once more, and lost if refused."""
        writing: asyncio.Future[None] | None = None
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                writing = asyncio.ensure_future(self._flush())
                await asyncio.shield(writing)
                if self._waiting and self._failing:
                    await asyncio.sleep(RETRY_S)
                    self._wake.set()
        finally:
            if writing is not None:
                # Later lines must not overtake a batch that is still being written.
                await asyncio.wait((writing,))
            self.lost += sum(line is not None for line in self._append(self._waiting))

    async def _flush(self) -> None:
        """Write what waits; what is refused goes back to the front of the queue."""
        self._writing, self._waiting = self._waiting, []
        refused = await asyncio.to_thread(self._append, self._writing)
        self._writing = ()
        self._waiting[:0] = refused
        self._waiting_bytes = sum(len(line) for line in self._waiting if line is not None)

    def _append(self, batch: Sequence[str | None]) -> Sequence[str | None]:
        """Write a batch; returns the end of it that was refused."""
        done = 0
        try:
            part: list[str] = []
            for number, line in enumerate(batch):
                if line is not None:
                    part.append(line)
                    continue
                self._write(part)
                part, done = [], number
                if self._path.is_file():
                    self._rename_full()
                done = number + 1
            self._write(part)
        except OSError as error:
            if not self._failing:
                _log.error("file.failed", file=str(self._path), reason=error.strerror or str(error))
            self._failing = True
            return batch[done:]
        if self._failing and batch:
            _log.info("file.recovered", file=str(self._path), lost=self.lost)
            self._failing = False
        return ()

    def _rename_full(self) -> None:
        """Move the full file away, and keep its permissions for the next one."""
        readers = stat.S_IMODE(self._path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH)
        self._path.replace(rotated(self._path))
        self._path.touch(mode=0o600)
        self._path.chmod(readers)

    def _write(self, lines: Sequence[str]) -> None:
        """Append lines, all or none: half of them would be there twice after a retry."""
        if not lines:
            return
        with open(self._path, "ab", buffering=0, opener=_private) as file:
            begin = file.tell()
            torn = begin > 0 and not _ends_a_line(self._path)
            left = memoryview((("\n" if torn else "") + "".join(f"{line}\n" for line in lines)).encode())
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(begin)
                raise


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
