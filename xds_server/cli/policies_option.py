"""``-f/--filename``: policies from files, folders and stdin, the same for every command."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from policies.load import load_found
from policies.model import PolicySet
from policies.policy_files import read, read_from, search

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
    found = search([path for path in filename if path != STDIN])
    contents = {path: read(path) for path in found.files}
    if STDIN in filename:
        if sys.stdin is None:
            raise click.UsageError("-f - reads stdin, which is closed")
        contents[Path("<stdin>")] = read_from(sys.stdin.buffer)
    return load_found(found, contents, tuple(filename))
