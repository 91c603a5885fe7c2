"""``-f/--filename``: policies from files, folders and stdin, the same for every command."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from policies.findings import Problem
from policies.load import load_found
from policies.model import PolicySet
from policies.policy_files import FileSearch, read, read_from, search

STDIN: Final = Path("-")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def policies_option(
    text: str = "Policy file or folder, - for stdin; repeatable.", *, required: bool = False
) -> Callable[[_Command], _Command]:
    """``-f FILE|DIR|-``, repeatable; the command gets ``filename``, a tuple of paths."""
    return click.option(
        "--filename",
        "-f",
        multiple=True,
        required=required,
        type=click.Path(path_type=Path, allow_dash=True),
        metavar="FILE|DIR|-",
        help=text,
    )


def load_policies(filename: Sequence[Path]) -> PolicySet:
    """The policies of these files; ``PolicyErrors`` as ``policies.load.load``, usage error without a stdin."""
    return read_policies(filename).load()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTexts:
    """Policy files as they were read once, stdin included."""

    filename: Sequence[Path]
    found: FileSearch
    contents: Mapping[Path, bytes | Problem]

    def load(self) -> PolicySet:
        """The policies in them; ``PolicyErrors`` as ``policies.load.load``."""
        return load_found(self.found, self.contents, tuple(self.filename))


def read_policies(filename: Sequence[Path]) -> PolicyTexts:
    """The content of these files and folders; usage error without a stdin."""
    found = search([path for path in filename if path != STDIN])
    contents = {path: read(path) for path in found.files}
    if STDIN in filename:
        if sys.stdin is None:
            raise click.UsageError("-f - reads stdin, which is closed")
        contents[Path("<stdin>")] = read_from(sys.stdin.buffer)
    return PolicyTexts(filename=filename, found=found, contents=contents)
