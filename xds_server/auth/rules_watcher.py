"""Current access rules: their file and the token files, reloaded on change.

An invalid edit is reported, and the previous rules stay in force. Tokens stay here: they never appear in logs,
metrics or status.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from engine.regular_file import read_regular_file
from policies.findings import PolicyErrors
from xds_server.admin_api.status_types import FileDefect, FileProblem
from xds_server.auth.access_rules import Access, AdminRule
from xds_server.auth.rules_file import read_access

MAX_TOKEN_BYTES: Final = 4096
MIN_TOKEN_CHARACTERS: Final = 16
"""Shorter tokens are passwords: chosen by people, and guessable."""

Stamp = tuple[int, int, int, int] | None


class RulesWatcher:
    """``current`` is cheap without changes. ``judge`` rejects edits beyond what parsing detects.

    At start, raises ``PolicyErrors`` for an unusable file, since there are no previous rules, and ``ValueError``
    from ``judge``.
    """

    def __init__(
        self, path: Path, *, judge: Callable[[Access], str] = lambda _: "", tell: Callable[[str], None]
    ) -> None:
        self.path = path
        self.trouble = ""
        self.tokens: Mapping[AdminRule, str] = MappingProxyType({})
        self._judge = judge
        self._tell = tell
        self._of_tokens: tuple[FileProblem, ...] = ()
        self._token_stamps: Mapping[Path, Stamp] = {}
        self._stamp = _stamp(path)
        self.access = self._read()
        self._look_at_tokens()

    def current(self) -> Access:
        """Rules in force."""
        stamp = _stamp(self.path)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self.access = self._read()
            except (PolicyErrors, ValueError) as error:
                self.trouble = _sentence(error)
            else:
                self.trouble = ""
                self._token_stamps = {}
        self._look_at_tokens()
        return self.access

    def file_problems(self) -> Iterable[FileProblem]:
        """Current problems with rules and tokens."""
        if self.trouble:
            sentence = f"{self.trouble}; the previous rules stay in force"
            yield FileProblem(what="rules", defect=FileDefect.UNUSABLE, file=str(self.path), sentence=sentence)
        yield from self._of_tokens

    def _read(self) -> Access:
        access = read_access(self.path)
        if reason := self._judge(access):
            raise ValueError(f"{self.path}: {reason}")
        return access

    def _look_at_tokens(self) -> None:
        rules = {rule: self._place(rule.token_file) for rule in self.access.spec.admin if rule.token_file}
        stamps = {path: _stamp(path) for path in rules.values()}
        if stamps == self._token_stamps and self.tokens.keys() == rules.keys():
            return
        self._token_stamps = stamps
        found: list[FileProblem] = []
        tokens: dict[AdminRule, str] = {}
        for rule, path in rules.items():
            try:
                # An unreadable token admits no caller: unlike a certificate, it grants access.
                tokens[rule] = _token(path)
                if _is_open(path.stat()):
                    open_to = "readable by other users: run chmod 600"
                    found.append(_of_token(path, FileDefect.OPEN, open_to))
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                found.append(_of_token(path, FileDefect.UNUSABLE, f"{reason}; this token is unusable"))
        self.tokens = MappingProxyType(tokens)
        for one in found:
            if one not in self._of_tokens:
                self._tell(f"{one.file}: {one.sentence}")
        self._of_tokens = tuple(found)

    def _place(self, path: Path) -> Path:
        return path if path.is_absolute() else self.path.parent / path


def _of_token(path: Path, defect: FileDefect, sentence: str) -> FileProblem:
    return FileProblem(what="token", defect=defect, file=str(path), sentence=sentence)


def _is_open(status: os.stat_result) -> bool:
    """Whether unintended users may read the file.

    Files of another owner, as mounted by Kubernetes, are read by this process through its group.
    """
    own = status.st_uid == os.geteuid()
    return bool(status.st_mode & (stat.S_IRWXO | (stat.S_IRWXG if own else 0)))


def _token(path: Path) -> str:
    held = read_regular_file(path, MAX_TOKEN_BYTES + 1)
    if len(held) > MAX_TOKEN_BYTES:
        raise ValueError(f"larger than {MAX_TOKEN_BYTES} bytes, not a token")
    try:
        token = held.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise ValueError("a token must be ASCII") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise ValueError(f"a token needs at least {MIN_TOKEN_CHARACTERS} characters, without spaces")
    return token


def _sentence(error: PolicyErrors | ValueError) -> str:
    if isinstance(error, PolicyErrors):
        return "; ".join(map(str, error.exceptions[:3]))
    return str(error)


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    # Include the mode: a change of permissions alone is also worth reporting.
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode
