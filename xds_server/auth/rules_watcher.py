"""The rules of access as they are now: their file and the files of tokens, read again when they change.

An edit that cannot be used leaves the rules before it in force, and is told. Tokens are held here and go nowhere
else: not into a log, a metric or a status.
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
"""Shorter ones are passwords: somebody made them up, and somebody else can guess them."""

Stamp = tuple[int, int, int, int] | None


class RulesWatcher:
    """``current`` is cheap where nothing changed. ``judge`` says what cannot be in an edit, beside what reading
    says.

    Raises ``PolicyErrors`` when the file cannot be used at the start, for there are no rules before it, and
    ``ValueError`` for what ``judge`` says.
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
        """The rules to go by now."""
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
        """What is wrong with the rules and the tokens now."""
        if self.trouble:
            sentence = f"{self.trouble}; the rules before it stay in force"
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
                # A token that cannot be read is nobody's: unlike a certificate, it is a reason to let people in.
                tokens[rule] = _token(path)
                if _is_open(path.stat()):
                    open_to = "others than its owner may read this token; chmod 600 it"
                    found.append(_of_token(path, FileDefect.OPEN, open_to))
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                found.append(_of_token(path, FileDefect.UNUSABLE, f"{reason}; nobody can use this token"))
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
    """Whether others than who is meant may read it.

    What somebody else owns, as Kubernetes does what it mounts, this process itself reads through its group.
    """
    own = status.st_uid == os.geteuid()
    return bool(status.st_mode & (stat.S_IRWXO | (stat.S_IRWXG if own else 0)))


def _token(path: Path) -> str:
    held = read_regular_file(path, MAX_TOKEN_BYTES + 1)
    if len(held) > MAX_TOKEN_BYTES:
        raise ValueError(f"larger than {MAX_TOKEN_BYTES} bytes, so no token")
    try:
        token = held.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise ValueError("a token is ASCII") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise ValueError(f"a token has at least {MIN_TOKEN_CHARACTERS} characters, and no space")
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
    # Who may read it is part of it: a change of that alone is no change of content, and no less worth telling.
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode
