"""Output of verdicts: terminal or data on stdout, JUnit XML and HTML in files."""

import functools
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
from command_line.output_format import DATA, OutputForm, as_data, output_option

_FILE = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictOutputs:
    """Format on stdout, and report files."""

    form: OutputForm
    junit: Path | None
    html: Path | None

    @property
    def console(self) -> Console:
        """Console for people: stderr if stdout carries data."""
        return Console(stderr=self.form in DATA)


def prepare_outputs(folder: Path | None, outputs: VerdictOutputs) -> None:
    """Create the folder of histories; ClickException if it or a report file cannot be written."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise click.ClickException(f"--out {folder}: {problem.strerror or problem}") from problem
        if not os.access(folder, os.W_OK):
            raise click.ClickException(f"--out {folder}: the folder is not writable")
    for option, file in (("--junit", outputs.junit), ("--html", outputs.html)):
        if file is None:
            continue
        if not file.parent.is_dir():
            raise click.ClickException(f"{option} {file}: folder {file.parent} does not exist")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise click.ClickException(f"{option} {file}: not writable")


def output_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add ``-o``, ``--junit`` and ``--html`` to a subcommand; its function gets ``outputs``."""

    @functools.wraps(function)
    def wrapped(*, output: OutputForm, junit: Path | None, html: Path | None, **rest: Any) -> int:
        return function(outputs=VerdictOutputs(form=output, junit=junit, html=html), **rest)

    for option in (
        click.option(
            "--html",
            type=_FILE,
            callback=_html_path,
            help="Also write the report as one HTML file that needs no network.",
        ),
        click.option("--junit", type=_FILE, help="Also write JUnit XML, for CI."),
        output_option(text="Output format of the verdicts"),
    ):
        wrapped = option(wrapped)
    return wrapped


def _html_path(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """Return the path; usage error before any run if the template engine is not installed."""
    if path is not None and find_spec("jinja2") is None:
        raise click.UsageError("--html needs jinja2; in a checkout: pip install '.[report]'")
    return path


def write_verdicts(
    verdicts: Sequence[ExperimentVerdict], outputs: VerdictOutputs, baselines: Collection[str] = ()
) -> int:
    """Write all outputs; return the exit code, which ignores the subjects in ``baselines``."""
    print_report(verdicts, outputs.console)
    if outputs.junit is not None:
        outputs.junit.write_text(junit_xml(verdicts), encoding="utf-8")
    if outputs.html is not None:
        from chaos.report.html import html_report  # noqa: PLC0415 -- imports a template engine

        outputs.html.write_text(html_report(verdicts, baselines), encoding="utf-8")
    if outputs.form in DATA:
        click.echo(as_data([_record(one) for one in verdicts], outputs.form), nl=False)
    return EXIT_STATUS[under_test(verdicts, baselines)]


def _record(one: ExperimentVerdict) -> Mapping[str, Any]:
    return {
        "scenario": one.name,
        "subject": one.subject,
        "answer": one.answer.value,
        "seed": one.history.began.seed,
        "findings": [{**asdict(finding), "answer": finding.answer.value} for finding in one.findings],
        "not_judged": list(one.not_judged),
    }
