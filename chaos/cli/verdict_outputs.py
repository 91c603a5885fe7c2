"""The forms in which verdicts leave: a terminal, JSON, JUnit XML and one HTML file."""

import functools
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from chaos.checks.experiment_verdict import EXIT_STATUS, ExperimentVerdict, under_test
from chaos.report.junit import junit_xml
from chaos.report.terminal_report import print_report

_FILE = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictOutputs:
    """What was asked for; the terminal is always told."""

    as_json: bool
    junit: Path | None
    html: Path | None

    @property
    def console(self) -> Console:
        """Where people read; stderr where a machine reads stdout."""
        return Console(stderr=self.as_json)


def prepare_outputs(folder: Path | None, outputs: VerdictOutputs) -> None:
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


def output_options(function: Callable[..., int]) -> Callable[..., int]:
    """Gives a subcommand the options ``--json``, ``--junit`` and ``--html``, and its function one ``outputs``."""

    @functools.wraps(function)
    def taken(*, as_json: bool, junit: Path | None, html: Path | None, **rest: Any) -> int:
        return function(outputs=VerdictOutputs(as_json=as_json, junit=junit, html=html), **rest)

    for option in (
        click.option(
            "--html",
            type=_FILE,
            callback=_drawable,
            help="Write the report into this file, readable without a network.",
        ),
        click.option("--junit", type=_FILE, help="Write JUnit XML, for CI, into this file."),
        click.option("--json", "as_json", is_flag=True, help="The verdicts as JSON on stdout."),
    ):
        taken = option(taken)
    return taken


def _drawable(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """The path; complains before anything is run when what writes the page is not installed."""
    if path is not None and find_spec("jinja2") is None:
        raise click.UsageError("--html needs jinja2: pip install 'switchgear[report]'")
    return path


def write_verdicts(
    verdicts: Sequence[ExperimentVerdict], outputs: VerdictOutputs, beside: Collection[str] = ()
) -> int:
    """Write what was asked for, and return the exit code, for which subjects ``beside`` do not count."""
    print_report(verdicts, outputs.console)
    if outputs.junit is not None:
        outputs.junit.write_text(junit_xml(verdicts), encoding="utf-8")
    if outputs.html is not None:
        from chaos.report.html import html_report  # noqa: PLC0415 -- only who asks for it pays for its libraries

        outputs.html.write_text(html_report(verdicts, beside), encoding="utf-8")
    if outputs.as_json:
        click.echo(json.dumps([_record(one) for one in verdicts], indent=2))
    return EXIT_STATUS[under_test(verdicts, beside)]


def _record(one: ExperimentVerdict) -> Mapping[str, Any]:
    return {
        "scenario": one.name,
        "subject": one.subject,
        "answer": one.answer.value,
        "seed": one.history.began.seed,
        "findings": [asdict(finding) for finding in one.findings],
    }
