"""Policy versions, in memory and, with a folder, on disk: one file each.

A file is written in one step, carries a checksum and is for this user only. It identifies policies by the digests
of earlier releases; ``digest_table`` maps those to content digests. A damaged or foreign file, or one of another
format, is reported and left alone; fields of a later version within the format are ignored. The oldest versions
are removed when there are too many or they are too large; the served one is the newest and always stays.
"""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import structlog
from pydantic import BaseModel, ConfigDict

from xds_server.rollout.history import digest_table
from xds_server.rollout.history.announced_number import AnnouncedNumber
from xds_server.rollout.history.policy_version import PolicyVersion, VersionSource
from xds_server.state.atomic_file import RETRY_S, write_atomically
from xds_server.state.versioned_file import StoreError, VersionedFile
from xds_server.state.write_failures import WriteFailures

FOLDER: Final = "history"
FORMAT: Final = "switchgear-version/1"
MAX_VERSIONS: Final = 200
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of all versions together. A version of ten thousand engines is about 1 MiB."""

_NAME: Final = re.compile(r"([0-9]{8})\.json")
_LEFT: Final = re.compile(r"\.[0-9]{8}\.json\.")
"""Temporary file of a killed process."""

_log = structlog.get_logger()


class _Payload(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    number: int
    digest: str
    at_unix_s: float
    source: VersionSource
    by: str
    texts: dict[str, str]
    reason: str
    beside: str
    restores: int


_FILE: Final = VersionedFile(format=FORMAT, content=_Payload, max_bytes=MAX_BYTES, sealed=True, one_line=True)


class VersionArchive:
    """The versions, oldest first; ``run`` saves them to disk.

    ``kept``: they survive this process. ``damaged`` names files that could not be read.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        max_versions: int = MAX_VERSIONS,
        max_bytes: int = MAX_BYTES,
        disk: WriteFailures | None = None,
    ) -> None:
        self._disk = disk or WriteFailures()
        self._folder = folder
        self._max_versions = max_versions
        self._max_bytes = max_bytes
        self._versions: dict[int, PolicyVersion] = {}
        self._unsaved: deque[PolicyVersion] = deque()
        self._wake = asyncio.Event()
        self._last = 0
        self._announced = AnnouncedNumber(folder)
        self._says: Mapping[str, str] = {}
        self._needed: Mapping[str, str] = {}
        self.damaged: tuple[str, ...] = ()
        self.failure = ""
        """Why the newest version could not be written; empty if it was."""

    @property
    def kept(self) -> bool:
        """Whether versions survive this process."""
        return self._folder is not None

    @property
    def versions(self) -> Sequence[PolicyVersion]:
        """All known versions, oldest first."""
        return tuple(self._versions.values())

    @property
    def newest(self) -> PolicyVersion | None:
        """The newest version."""
        return self._versions[max(self._versions)] if self._versions else None

    @property
    def last(self) -> PolicyVersion | None:
        """The newest version, or None if a newer one is damaged: then the last one served is unknown."""
        return self._versions.get(self._last)

    def version(self, number: int) -> PolicyVersion | None:
        """The version of this number, None if there is none (any more)."""
        return self._versions.get(number)

    def restore(self) -> None:
        """Load the versions of earlier runs."""
        if self._folder is None or not self._folder.is_dir():
            return
        damaged = []
        self._announced.restore()
        self._says = digest_table.read(self._folder)
        for path in sorted(self._folder.iterdir()):
            named = _NAME.fullmatch(path.name)
            if named is None:
                continue
            number = int(named[1])
            self._last = max(self._last, number)
            try:
                self._versions[number] = _known(read(path, number), self._says)
            except StoreError as error:
                damaged.append(path.name)
                _log.warning("history.skipped", file=str(path), reason=str(error))
        self._needed = digest_table.digests_by_former(self.versions)
        self.damaged = tuple(damaged)

    def settled(self, number: int) -> bool:
        """Whether this version is saved, or, if it cannot be, in memory for good."""
        return (
            self._folder is None or bool(self.failure) or all(one.number != number for one in tuple(self._unsaved))
        )

    def next_number(self) -> int:
        """The number of the next version; numbers are never reused."""
        return max(self._last, self._announced.number) + 1

    def add(self, version: PolicyVersion) -> None:
        """Add a version; ``run`` saves it."""
        self._announced.announce(version.number)
        self._last = max(self._last, version.number)
        self._versions[version.number] = version
        for gone in surplus(self.versions, self._max_versions, self._max_bytes):
            del self._versions[gone]
        if self._folder is not None:
            self._unsaved.append(version)
            self._wake.set()

    async def run(self) -> None:
        """Save versions until cancelled; retry what cannot be written."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self.failure else None):
                    await self._wake.wait()
            self._wake.clear()
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Write new versions and remove forgotten ones."""
        folder = self._folder
        if folder is None:
            return
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Before the versions that need it, and with entries of those about to be removed.
            says = {**self._needed, **digest_table.digests_by_former(self.versions)}
            if says != self._says:
                digest_table.write(folder, says)
                self._says = says
            while self._unsaved:
                write(folder / f"{self._unsaved[0].number:08}.json", self._unsaved[0])
                self._unsaved.popleft()
            for path in folder.iterdir():
                named = _NAME.fullmatch(path.name)
                gone = named and int(named[1]) not in self._versions and path.name not in self.damaged
                if gone or _LEFT.match(path.name):
                    path.unlink(missing_ok=True)
            self._needed = digest_table.digests_by_former(self.versions)
        except OSError as error:
            told = f"cannot write {folder}: {error.strerror or error}"
            if self._disk.record_failure(folder, told):
                _log.error("history.failed", reason=told)
            self.failure = told
            while len(self._unsaved) > self._max_versions:
                self._unsaved.popleft()
        else:
            self._disk.record_success(folder)
            self.failure = ""


def surplus(versions: Sequence[PolicyVersion], max_versions: int, max_bytes: int) -> tuple[int, ...]:
    """The numbers of the oldest versions beyond the limits; never that of the newest."""
    room, gone = max_bytes, []
    for number, version in enumerate(reversed(versions), 1):
        room -= sum(len(name) + len(text) for name, text in version.texts.items())
        if number > 1 and (number > max_versions or room < 0):
            gone.append(version.number)
    return tuple(gone)


def write(path: Path, version: PolicyVersion) -> None:
    """Write one version in one step; raises ``OSError``."""
    named = {"digest": version.former or version.digest, "beside": version.beside_former or version.beside}
    payload = _Payload.model_validate({**asdict(version), "texts": dict(version.texts), **named}).model_dump(
        mode="json"
    )
    write_atomically(path, _FILE.encode(payload))


def read(path: Path, number: int) -> PolicyVersion:
    """The version in a file, by the digests in it; ``StoreError`` if it cannot be trusted."""
    payload = _FILE.read(path)
    if payload is None:
        raise StoreError(f"{path} is gone")
    if payload.number != number:
        raise StoreError(f"{path} claims to be version {payload.number}")
    return PolicyVersion(**payload.model_dump())


def _known(version: PolicyVersion, says: Mapping[str, str]) -> PolicyVersion:
    """The version by content digest, as far as the table knows it."""
    known = version
    if version.digest in says:
        known = replace(known, digest=says[version.digest], former=version.digest)
    if version.beside in says:
        known = replace(known, beside=says[version.beside], beside_former=version.beside)
    return known
