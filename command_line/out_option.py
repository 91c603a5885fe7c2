"""``--out PATH``: where a command writes a file; ``-`` is stdout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

STDOUT: Final = Path("-")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def out_option(
    text: str, *, required: bool = False, default: Path | None = None
) -> Callable[[_Command], _Command]:
    """``--out PATH``; the command gets ``out``, a ``Path``, or None where it is absent and has no default."""
    return click.option(
        "--out",
        type=click.Path(path_type=Path, allow_dash=True),
        metavar="PATH",
        required=required,
        default=default,
        show_default=default is not None,
        help=text,
    )


def write_out(out: Path | None, text: str) -> None:
    """Write the text to the file, or to stdout where ``out`` is None or ``-``; usage error where it cannot."""
    if out is None or out == STDOUT:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror or error}") from error
