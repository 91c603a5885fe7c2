"""Where answers are to be kept, seen to before minutes are spent on them."""

import os
from pathlib import Path

import click

from chaos.cli.outputs import Outputs


def prepare(folder: Path | None, outputs: Outputs) -> None:
    """Make the folder of histories; ClickException where it, or a report, could not be written in the end."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise click.ClickException(f"--out {folder}: {problem.strerror or problem}") from problem
        if not os.access(folder, os.W_OK):
            raise click.ClickException(f"--out {folder}: nothing may be written there")
    for option, file in (("--junit", outputs.junit), ("--html", outputs.html)):
        if file is None:
            continue
        if not file.parent.is_dir():
            raise click.ClickException(f"{option} {file}: there is no folder {file.parent}")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise click.ClickException(f"{option} {file}: nothing may be written there")
