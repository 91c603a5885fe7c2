"""Policies from files on disk, read again whenever their content changes.

Editors write in place or by rename, Kubernetes swaps a symlink, folders vanish and return; some filesystems
announce nothing at all. So notifications (inotify and the like) only wake this module up, and the content decides:
it must be the same twice, ``settle_s`` apart, and again after validation. A poll compares the content even without
notifications; it does not read a file whose inode, size and times have not changed.

A writer that pauses longer than ``settle_s`` in the middle of a file is read at that moment. The shrink guard
bounds what is missing then, and the rest follows when it is written.

Each transition yields one state: the policies were accepted, or refused with every reason.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import structlog
from watchfiles import awatch

from policies.findings import PolicyError, PolicyErrors, Problem
from policies.load import LoadCache, load_found
from policies.policy_files import FileSearch, decode_text, read, search
from xds_server.model.policy_state import AcceptedPolicies, PolicyState, RejectedPolicies

_WATCH_STEP_MS: Final = 20
"""How long the watcher collects further notifications before it passes them on."""

SETTLED_NS: Final = 3_000_000_000
"""Age from which a file's times identify its content; the coarsest file systems count in 2 s."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The files under the paths at one moment, and their ``digest``: over names, content, and read errors."""

    found: FileSearch
    contents: Mapping[Path, bytes | Problem]
    digest: str


class PolicyFiles:
    """The policy files under ``paths`` (folders or files); see ``states``."""

    def __init__(self, paths: Sequence[Path], *, settle_s: float = 0.1, poll_s: float = 2.0) -> None:
        self._paths = tuple(paths)
        self._settle_s = settle_s
        self._poll_s = poll_s
        self._cache = LoadCache()
        self._digests = _FileDigests()
        self._announced = asyncio.Event()

    async def states(self) -> AsyncGenerator[PolicyState, None]:
        """The present state, then each different one, as long as it is iterated."""
        seen: str | None = None
        while True:
            if await asyncio.to_thread(self._digests.digest, self._paths) != seen:
                judged, state = await self._judged()
                # An editor may write the same text twice, or revert an edit meanwhile.
                if judged != seen:
                    seen = judged
                    yield state
            # Not wait_for: before Python 3.12 it can swallow a cancellation that meets the end of the wait.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._announced.wait()
            self._announced.clear()

    async def _judged(self) -> tuple[str, PolicyState]:
        """A hash of content that was stable before and during validation, and its state."""
        before = await asyncio.to_thread(_digest, self._paths)
        while True:
            await asyncio.sleep(self._settle_s)
            settled = await asyncio.to_thread(_look, self._paths)
            if settled.digest == before:
                state = await asyncio.to_thread(self._judge, settled)
                before = await asyncio.to_thread(_digest, self._paths)
                if before == settled.digest:
                    return before, state
            else:
                before = settled.digest

    def _judge(self, reading: _Reading) -> PolicyState:
        # Not read again: a reverted edit would be validated as the previous content.
        try:
            policies = load_found(reading.found, reading.contents, self._paths, self._cache)
        except PolicyErrors as refusal:
            errors = tuple(error for error in refusal.exceptions if isinstance(error, PolicyError))
            return RejectedPolicies(errors=errors, digest=reading.digest)
        return AcceptedPolicies(
            policies=policies, texts=_texts(reading.contents), digest=policies.digest, former=reading.digest
        )

    async def watch(self) -> None:
        """Wake ``states`` up whenever the operating system announces a change; runs until cancelled.

        Without it the poll still finds changes.
        """
        told: str | None = None
        while True:
            folders = _folders(self._paths)
            identity = _identity(folders)
            announcements = awatch(
                *identity,
                watch_filter=None,  # Kubernetes swaps a link named ..data, which the default filter may skip
                step=_WATCH_STEP_MS,
                debounce=_WATCH_STEP_MS * 5,
                rust_timeout=int(self._poll_s * 1000),
                yield_on_timeout=True,
            )
            try:
                async with contextlib.aclosing(announcements):
                    async for _ in announcements:
                        self._announced.set()
                        if _identity(folders) != identity:
                            break  # a folder vanished or returned: the watched one no longer exists
            except (OSError, RuntimeError) as error:
                # Gone between two calls, or the system is out of watches: the poll continues alone.
                if str(error) != told:
                    told = str(error)
                    _log.warning("policies.watch_failed", reason=told, poll_s=self._poll_s)
                await asyncio.sleep(self._poll_s)


def _folders(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Folders to watch: folders themselves, and for files their folder, because a rename happens there."""
    return tuple(dict.fromkeys(path.parent if path.is_file() else path for path in paths))


def _identity(folders: Sequence[Path]) -> dict[Path, tuple[int, int]]:
    """The existing folders, each with the device and inode that a watch is tied to."""
    found: dict[Path, tuple[int, int]] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            status = folder.stat()
            found[folder] = (status.st_dev, status.st_ino)
    return found


def _texts(contents: Mapping[Path, bytes | Problem]) -> dict[str, str]:
    """Every readable policy file with its text."""
    texts = {}
    for file, content in contents.items():
        text = content if isinstance(content, Problem) else decode_text(content)
        if isinstance(text, str):
            texts[str(file)] = text
    return texts


def _look(paths: Sequence[Path]) -> _Reading:
    found = search(paths)
    contents = {file: read(file) for file in found.files}
    digests = {file: _digest_of(content) for file, content in contents.items()}
    return _Reading(found=found, contents=contents, digest=_joined(found, digests))


def _digest(paths: Sequence[Path]) -> str:
    """A hash over names and content of every policy file, and over all read errors."""
    return _look(paths).digest


def _digest_of(content: bytes | Problem) -> bytes:
    return blake2b(content.message.encode() if isinstance(content, Problem) else content, digest_size=16).digest()


def _joined(found: FileSearch, digests: Mapping[Path, bytes]) -> str:
    hashed = blake2b(digest_size=16)
    for name, problem in found.problems:
        hashed.update(f"{name}\0{problem.code}\0{problem.message}\0".encode(errors="surrogateescape"))
    for file, digest in digests.items():
        hashed.update(f"{file}\0".encode(errors="surrogateescape") + digest)
    return hashed.hexdigest()


class _FileDigests:
    """Digests of policy files, without reading a file again while its inode, size and times stand."""

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_ns = wall_ns
        self._known: dict[Path, tuple[tuple[int, ...], bytes]] = {}

    def digest(self, paths: Sequence[Path]) -> str:
        """The digest of a reading, see ``_Reading``."""
        found = search(paths)
        fresh: dict[Path, tuple[tuple[int, ...], bytes]] = {}
        digests: dict[Path, bytes] = {}
        for file in found.files:
            identity, settled = self._identity(file)
            known = self._known.get(file)
            if known is not None and known[0] == identity:
                fresh[file], digests[file] = known, known[1]
                continue
            content = read(file)
            digests[file] = _digest_of(content)
            if settled and not isinstance(content, Problem):  # what could not be read may be readable now
                fresh[file] = (identity, digests[file])
        self._known = fresh
        return _joined(found, digests)

    def _identity(self, file: Path) -> tuple[tuple[int, ...], bool]:
        """Identity of a file's content, and whether it will be another one after the next change."""
        try:
            status = file.stat()
        except OSError:
            return (), False
        newest_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        # Two changes within one tick of the file system's clock leave the same times.
        settled = 0 <= newest_ns < self._wall_ns() - SETTLED_NS
        return (
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        ), settled
