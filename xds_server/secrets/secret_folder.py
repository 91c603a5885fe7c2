"""Engine certificates from a folder with one subfolder per secret, like mounted Kubernetes TLS Secrets.

Rotations write several files one after another, or swap a link. So content decides, not file events: it must be
equal at two polls in a row, and consistent, before it replaces the previous content. Good content stays in use
while the present content is invalid; the problem is reported once.

Links must stay inside the folder, even while they change: a user who can create links there must not make the
server send other files to proxies.
"""

import asyncio
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
from prometheus_client.core import Metric

from engine.api_key_file import parse_api_key
from policies.quantity import NAME_PATTERN
from xds_server.admin_api.status_types import FileDefect, FileProblem
from xds_server.diagnosis.file_problems import expiry_problem
from xds_server.metrics.control_metrics import ControlPlaneMetrics
from xds_server.model.secret import Secrets
from xds_server.secrets.secret_validation import (
    API_KEY,
    AUTHORITIES,
    FILES,
    UnusableSecretError,
    ValidatedSecret,
    validate_secret,
)

POLL_EVERY_S: Final = 1.0
MAX_SECRETS: Final = 1000
MAX_BYTES: Final = 1024 * 1024
"""A bundle of all public CAs has a quarter of this."""

MAX_BYTES_TOGETHER: Final = 64 * 1024 * 1024
"""Limit over all secrets: a thousand with a chain of public CAs each."""

REVALIDATE_EVERY_S: Final = 10.0
"""Rejected content is validated again after this time, since dates may have made it valid."""

_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_NAME_CHARACTERS: Final = 63
_SHOWN: Final = 80
_log = structlog.get_logger()

_Content = tuple[bytes | None, ...]
"""Content of ca.crt, tls.crt and tls.key; None if missing."""


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Why a folder's files cannot be read."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Refused:
    """Invalid content, with the reason and the time of validation."""

    content: _Content
    at_unix_s: float
    reason: str


class SecretFolder:
    """Usable secrets in ``folder``; read at once, then at each ``poll``.

    ``in_use``: whether policies name a secret; unused secrets missing in the folder are forgotten. ``wall``:
    clock for expiry.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        in_use: Callable[[], Collection[str]] = tuple,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._in_use = in_use
        self._wall = wall
        self._held: dict[str, ValidatedSecret] = {}
        self._contents: dict[str, _Content] = {}
        self._seen: dict[str, _Content | _Unreadable] = {}
        self._refused: dict[str, _Refused] = {}
        self._reasons: Mapping[str, str] = {}
        self._folder_reason = ""
        self.current: Secrets = MappingProxyType({})
        """All usable secrets by name; the same object while unchanged."""
        self.api_keys: Mapping[str, str] = MappingProxyType({})
        """Usable API keys by name of the secret."""
        self._seen_keys: dict[str, bytes | None] = {}
        self._look(settled=True)

    async def run(self, on_change: Callable[[], None]) -> None:
        """Poll until cancelled; calls back when usable secrets change."""
        while self._folder is not None:
            await asyncio.sleep(POLL_EVERY_S)
            # In a thread: the folder may be on a mount that does not answer.
            if await asyncio.to_thread(self.poll):
                on_change()

    def poll(self) -> bool:
        """Poll once; returns whether ``current`` changed."""
        return self._look(settled=False)

    def why_not(self, name: str) -> str:
        """Why a secret that is not in ``current`` is unusable."""
        if self._folder is None:
            return "this server was started without --secrets"
        return self._reasons.get(name) or self._folder_reason or f"no folder {self._folder / name}"

    def problems(self) -> Iterable[FileProblem]:
        """Current problems."""
        if self._folder is None:
            return
        if self._folder_reason:
            yield _unusable(self._folder, f"{self._folder_reason}; previously read secrets stay in use")
        for name, reason in self._reasons.items():
            instead = "the previous content stays in use" if name in self._held else "policies cannot name it"
            yield _unusable(self._folder / name, f"{reason}; {instead}")
        for name, one in dict(self._held).items():
            yield from expiry_problem(
                "secret",
                str(self._folder / name),
                begins_unix_s=one.begins_unix_s,
                ends_unix_s=one.secret.ends_unix_s,
                now_unix_s=self._wall(),
            )

    def families(self) -> Iterable[Metric]:
        """Metrics for alerts."""
        if self._folder is None:
            return
        now_s, held, reasons = self._wall(), dict(self._held), self._reasons
        yield ControlPlaneMetrics.secret_expiry_seconds.family(
            {(name,): one.secret.ends_unix_s - now_s for name, one in held.items()}
        )
        yield ControlPlaneMetrics.secret_lifetime_seconds.family(
            {(name,): one.secret.ends_unix_s - one.begins_unix_s for name, one in held.items()}
        )
        yield ControlPlaneMetrics.secret_trouble.family(
            {(name,): float(name in reasons or bool(self._folder_reason)) for name in {*held, *reasons}}
        )

    # -- polling -------------------------------------------------------------------------------------------

    def _look(self, *, settled: bool) -> bool:
        if self._folder is None:
            return False
        found, reason = _listed(self._folder)
        if reason and reason != self._folder_reason:
            _log.error("secrets.unreadable", folder=str(self._folder), reason=reason)
        self._folder_reason = reason
        if reason:
            return False
        reasons: dict[str, str] = {}
        changed = self._forget(found, reasons)
        together = 0
        keys: dict[str, str] = {}
        for name in found:
            if not _is_name(name):
                # Untrusted name: it is displayed, and used as a metric label.
                shown = ascii(name)[1:-1][:_SHOWN]
                reasons[shown] = "secret names have lower-case letters, digits and dashes, at most 63"
                continue
            key = self._api_key(self._folder, name, keys, reasons, settled=settled)
            content, before = _read(self._folder, name, MAX_BYTES_TOGETHER - together), self._seen.get(name)
            if key and content == (None, None, None) and name not in self._held:
                continue  # an API key alone
            together += _size(content)
            self._seen[name] = content
            if isinstance(content, _Unreadable):
                reasons[name] = content.reason
            elif content == self._contents.get(name):
                self._seen[name] = self._contents[name]  # changed since the last poll
            elif not settled and content != before:
                # A write is in progress; keep an earlier reason until the next poll.
                reasons |= {name: self._reasons[name]} if name in self._reasons else {}
            else:
                changed = self._judge(name, content, reasons) or changed
        self._tell(reasons)
        self._reasons = reasons
        self.api_keys = MappingProxyType(keys)
        self._seen_keys = {name: one for name, one in self._seen_keys.items() if name in found}
        if changed or settled:
            self.current = MappingProxyType({name: one.secret for name, one in sorted(self._held.items())})
        return changed

    def _api_key(
        self, folder: Path, name: str, keys: dict[str, str], reasons: dict[str, str], *, settled: bool
    ) -> bool:
        """Add the secret's API key to ``keys``, or its defect to ``reasons``; whether there is a file."""
        try:
            content = _file(folder, folder / name / API_KEY)
            changing = not settled and content != self._seen_keys.get(name)
            self._seen_keys[name] = content
            if content is not None and not changing:
                keys[name] = parse_api_key(content)
            elif changing and name in self.api_keys:
                keys[name] = self.api_keys[name]
        except (UnusableSecretError, ValueError) as error:
            reasons[name] = str(error) if isinstance(error, UnusableSecretError) else f"{API_KEY} {error}"
            if name in self.api_keys:
                keys[name] = self.api_keys[name]
            return True
        return content is not None

    def _forget(self, found: Collection[str], reasons: dict[str, str]) -> bool:
        """Forget missing secrets that are unused; returns whether there were any."""
        gone = [name for name in self._held if name not in found]
        wanted = frozenset(self._in_use()) if gone else frozenset[str]()
        for name in gone:
            if name in wanted:
                reasons[name] = "folder deleted, but policies name it"
            else:
                del self._held[name], self._contents[name]
                _log.info("secret.gone", secret=name)
        self._seen = {name: one for name, one in self._seen.items() if name in found}
        self._refused = {name: one for name, one in self._refused.items() if name in found}
        return any(name not in wanted for name in gone)

    def _judge(self, name: str, content: _Content, reasons: dict[str, str]) -> bool:
        authorities, chain, key = content
        known, now_s = self._refused.pop(name, None), self._wall()
        if known is not None and known.content == content and 0 <= now_s - known.at_unix_s < REVALIDATE_EVERY_S:
            self._refused[name], reasons[name] = known, known.reason
            return False
        try:
            if authorities is None:
                raise UnusableSecretError(f"{AUTHORITIES} is missing: it is required to verify engines")
            one = validate_secret(name, authorities=authorities, chain=chain, key=key, now_unix_s=now_s)
        except UnusableSecretError as error:
            self._refused[name] = _Refused(content, now_s, str(error))
            reasons[name] = str(error)
            return False
        self._held[name], self._contents[name] = one, content
        _log.info(
            "secret.changed",
            secret=name,
            subject=one.subject or "none: server authentication only",
            ends=datetime.fromtimestamp(one.secret.ends_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
        return True

    def _tell(self, reasons: Mapping[str, str]) -> None:
        for name, reason in reasons.items():
            if self._reasons.get(name) != reason:
                effect = "the previous content stays in use" if name in self._held else "policies cannot name it"
                _log.error("secret.refused", secret=name, reason=reason, effect=effect)


def _listed(folder: Path) -> tuple[list[str], str]:
    """Names of the subfolders, and the error if unreadable."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(one.name for one in entries if not one.name.startswith(".") and _is_folder(one))
    except OSError as error:
        return [], f"{error.strerror or error}"
    if len(found) > MAX_SECRETS:
        return [], f"{len(found)} folders; limit {MAX_SECRETS} secrets"
    return found, ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or unreadable: then reading it reports the error."""
    try:
        return entry.is_dir()
    except OSError:
        return True


def _read(folder: Path, name: str, room_bytes: int) -> _Content | _Unreadable:
    try:
        content = tuple(_file(folder, folder / name / file) for file in FILES)
    except UnusableSecretError as error:
        return _Unreadable(str(error))
    if _size(content) > room_bytes:
        return _Unreadable(f"all secrets together exceed {MAX_BYTES_TOGETHER} bytes")
    return content


def _size(content: _Content | _Unreadable) -> int:
    return 0 if isinstance(content, _Unreadable) else sum(len(one) for one in content if one is not None)


def _file(folder: Path, path: Path) -> bytes | None:
    """Content of a file, None if missing; ``UnusableSecretError`` if it must not be read."""
    root, real = os.path.realpath(folder), os.path.realpath(path)
    if os.path.commonpath((root, real)) != root:
        raise UnusableSecretError(f"{path.name} leads outside the secrets folder; only content inside it is sent")
    try:
        descriptor = _opened(root, real)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnusableSecretError(f"{path.name}: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        # Before opening: open() of a folder fails after allocating the descriptor.
        os.close(descriptor)
        raise UnusableSecretError(f"{path.name} is not a file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise UnusableSecretError(f"{path.name}: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise UnusableSecretError(f"{path.name} exceeds {MAX_BYTES} bytes: not a certificate")
    return content


def _opened(root: str, real: str) -> int:
    """Descriptor of a file below ``root``, opened without following links created after resolution."""
    *folders, file = Path(real).relative_to(root).parts or (".",)
    at = os.open(root, _FOLDER)
    try:
        for one in folders:
            below = os.open(one, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        # Non-blocking: opening a pipe would wait for a writer.
        return os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def _unusable(path: Path, sentence: str) -> FileProblem:
    return FileProblem(what="secret", defect=FileDefect.UNUSABLE, file=str(path), sentence=sentence)


def _is_name(name: str) -> bool:
    return len(name) <= _NAME_CHARACTERS and re.fullmatch(NAME_PATTERN, name) is not None
