"""Find policy files under paths, and read them.

Folders are searched for ``*.yaml``, ``*.yml`` and ``*.json``. Names that begin with a dot are skipped: Kubernetes
keeps the link targets of a mounted ConfigMap there, and editors their swap files. A file with two names counts
once.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from policies.findings import Problem, did_you_mean
from policies.origin import WHOLE_FILE, spot

SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})

MAX_FILE_BYTES: Final = 8 * 1024 * 1024
"""Enough for some hundred thousand engines; a larger file is a log or a dump."""

MAX_FILES: Final = 10_000
"""More files suggest a wrong path."""

_UTF_16: Final = ("utf-16-le", "utf-16-be")
_BOMS: Final = tuple(("\N{BYTE ORDER MARK}".encode(one), "utf-16") for one in _UTF_16)
_BYTE_ORDERS: Final = (*_UTF_16, "utf-8")


@dataclass(slots=True)
class FileSearch:
    """Files found under the given paths, and problems."""

    noun: str = "policy"
    files: list[Path] = field(default_factory=list)
    problems: list[tuple[str, Problem]] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def refuse(self, path: Path, code: str, message: str, **details: str) -> None:
        """Note a problem with a path as a whole."""
        self.problems.append((str(path), Problem(code=code, at=WHOLE_FILE, message=message, **details)))


def search(paths: Sequence[Path], noun: str = "policy") -> FileSearch:
    """Every file under ``paths`` that may hold a ``noun``, each once, in the order of paths and names."""
    found = FileSearch(noun=noun)
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            _refuse_os(found, path, error)
            continue
        if stat.S_ISDIR(status.st_mode):
            if not _search_folder(found, path, status, ()):
                found.refuse(
                    path,
                    "SG006",
                    f"no {noun} file in this folder",
                    allowed=f"files named {', '.join(f'*{one}' for one in sorted(SUFFIXES))}",
                    hint="hidden files and folders are skipped",
                )
        else:
            _take_file(found, path, status)
    return found


def _search_folder(
    found: FileSearch, folder: Path, status: os.stat_result, above: tuple[tuple[int, int], ...]
) -> bool:
    """Take every policy file of a folder; whether it had a file or a problem."""
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        found.refuse(folder, "SG004", "this link leads to a folder that contains it", hint="remove the link")
        return True
    if identity in found.seen:
        return True
    found.seen.add(identity)
    try:
        entries = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        _refuse_os(found, folder, error)
        return True
    anything = False
    for name in entries:
        if name.startswith(".") or len(found.files) > MAX_FILES:
            continue
        path = folder / name
        named_so = path.suffix.lower() in SUFFIXES
        try:
            inner = path.stat()
        except OSError as error:
            if named_so:
                _refuse_os(found, path, error)
                anything = True
            continue
        if stat.S_ISDIR(inner.st_mode):
            anything |= _search_folder(found, path, inner, (*above, identity))
        elif named_so:
            _take_file(found, path, inner)
            anything = True
    return anything


def _take_file(found: FileSearch, path: Path, status: os.stat_result) -> None:
    identity = (status.st_dev, status.st_ino)
    if identity in found.seen:
        return
    found.seen.add(identity)
    if not stat.S_ISREG(status.st_mode):
        found.refuse(
            path, "SG003", f"{_sort(status.st_mode)} is not a regular file", hint="name a file or a folder"
        )
    elif len(found.files) == MAX_FILES:
        found.files.append(path)
        found.refuse(
            path,
            "SG007",
            f"too many {found.noun} files; this one and the following are not read",
            allowed=f"at most {MAX_FILES:,} files",
            hint="check that this is the right folder",
        )
    elif len(found.files) < MAX_FILES:
        found.files.append(path)


def _sort(mode: int) -> str:
    sorts = (
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISCHR, "a device"),
    )
    return next((name for test, name in sorts if test(mode)), "something else")


def _refuse_os(found: FileSearch, path: Path, error: OSError) -> None:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            if path.is_symlink():
                found.refuse(
                    path, "SG001", "the target of this link is missing", hint="correct or remove the link"
                )
            else:
                found.refuse(path, "SG001", "no such file or folder", hint=_neighbour(path))
        case PermissionError():
            found.refuse(
                path, "SG002", "permission denied", hint="correct its permissions and those of its folders"
            )
        case _ if "symbolic links" in (error.strerror or ""):
            found.refuse(path, "SG004", "this link leads to itself", hint="remove the link")
        case _:
            found.refuse(path, "SG002", f"cannot read: {error.strerror or error}")


def _neighbour(path: Path) -> str:
    try:
        return did_you_mean(path.name, (entry.name for entry in os.scandir(path.parent)))
    except OSError:
        return ""


def read(path: Path, noun: str = "policy") -> bytes | Problem:
    """The content of a ``noun`` file, or a problem. A pipe does not block, and a huge file is not read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with open(descriptor, "rb") as file:  # noqa: PTH123 - opened by descriptor: a pipe does not block
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return Problem(code="SG003", at=WHOLE_FILE, message="not a regular file")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        found = FileSearch()
        _refuse_os(found, path, error)
        return found.problems[0][1]
    if len(content) <= MAX_FILE_BYTES:
        return content
    return _too_large(noun, found=f"{path.stat().st_size / 1024 / 1024:.0f} MiB" if path.exists() else "")


def read_from(stream: BinaryIO, noun: str = "policy") -> bytes | Problem:
    """The content of a stream, or a problem."""
    content = stream.read(MAX_FILE_BYTES + 1)
    return content if len(content) <= MAX_FILE_BYTES else _too_large(noun)


def _too_large(noun: str, *, found: str = "") -> Problem:
    return Problem(
        code="SG005",
        at=WHOLE_FILE,
        message=f"too large for a {noun} file; not read",
        found=found,
        allowed=f"at most {MAX_FILE_BYTES // 1024 // 1024} MiB",
        hint=f"split it, or move files without a {noun} out of the folder",
    )


def decode_text(content: bytes) -> str | Problem:
    """The text of a file: UTF-8, with or without byte order mark, or UTF-16 with one."""
    encoding = next((name for bom, name in _BOMS if content.startswith(bom)), "utf-8-sig")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding == "utf-8-sig":
            line = content.count(b"\n", 0, error.start) + 1
            column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        else:
            line, column = 1, 1
        return Problem(
            code="SG010",
            at=spot(line, column),
            message="not UTF-8 text",
            found=f"byte 0x{content[error.start]:02x}",
            allowed="UTF-8",
            hint="save the file as UTF-8",
        )


def encode_like(content: bytes, text: str) -> bytes:
    """The text in the encoding of ``content``, with its byte order mark if it has one."""
    for bom, encoding in (("\N{BYTE ORDER MARK}".encode(name), name) for name in _BYTE_ORDERS):
        if content.startswith(bom):
            return bom + text.encode(encoding)
    return text.encode()


def first_lines(path: Path, wanted: frozenset[int]) -> Iterator[tuple[int, str]]:
    """The lines with these numbers (from 1), to show with a problem; none if unreadable."""
    content = read(path)
    text = decode_text(content) if isinstance(content, bytes) else content
    if isinstance(text, str):
        yield from ((n, line) for n, line in enumerate(text.split("\n"), 1) if n in wanted)
