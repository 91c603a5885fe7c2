"""Options, output and exit code of all imports."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from pydantic import TypeAdapter, ValidationError

from command_line.out_option import out_option, write_out
from command_line.output_format import DATA, OutputForm, as_data, output_option
from istio.imports.draft_validation import ImportResult
from istio.imports.import_remarks import ImportRemark, RemarkKind
from istio.imports.policy_drafts import ImportOptions
from istio.imports.source_documents import SourceDocument, source_documents
from policies.findings import PolicyErrors
from policies.quantity import Name
from xds_server.cli.diagnostics import as_text, from_errors, printable
from xds_server.model.text import names_text

_NAMES: Final[TypeAdapter[str]] = TypeAdapter(Name)


def _name(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return _NAMES.validate_python(text)
    except ValidationError:
        raise click.BadParameter(f"{text!r} is not a name: use lower-case letters, digits and dashes") from None


def _models(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    models = {}
    for text in texts:
        pool, _, model = text.partition("=")
        if not pool or not model:
            raise click.BadParameter(f"{text!r} is not POOL=MODEL")
        models[pool] = model
    return models


_OPTIONS: Final = (
    click.option(
        "--filename",
        "-f",
        multiple=True,
        required=True,
        type=click.Path(allow_dash=True),
        metavar="FILE|-",
        help="File of the other tool, - for stdin; repeatable.",
    ),
    click.option(
        "--namespace",
        callback=_name,
        help="Namespace of the engines, if the files name none or another.",
    ),
    click.option(
        "--listener-port",
        default=10000,
        show_default=True,
        type=click.IntRange(1, 65535),
        help="Port on which Envoys listen for the routes.",
    ),
    click.option(
        "--model",
        "models",
        multiple=True,
        callback=_models,
        metavar="POOL=MODEL",
        help="Model of a pool, if the files do not name it; repeatable.",
    ),
    out_option("Write the policies to this file instead of stdout."),
    output_option(text="Output format of the list of unsupported settings, on stderr"),
    click.option("--strict", is_flag=True, help="Exit 1 if a setting is unsupported."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOutputs:
    """Where the policies go, format of the list of unsupported settings, and whether one of them exits 1."""

    form: OutputForm
    out: Path | None
    strict: bool


def import_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of all imports to a subcommand."""

    @functools.wraps(function)
    def wrapped(
        *,
        filename: tuple[str, ...],
        namespace: str | None,
        listener_port: int,
        models: dict[str, str],
        output: OutputForm,
        out: Path | None,
        strict: bool,
        **rest: Any,
    ) -> int:
        options = ImportOptions(namespace=namespace, listener_port=listener_port, models=models)
        outputs = ImportOutputs(form=output, out=out, strict=strict)
        return function(files=filename, options=options, outputs=outputs, **rest)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def run_import(
    files: Sequence[str],
    noun: str,
    translate: Callable[[Sequence[SourceDocument]], ImportResult],
    outputs: ImportOutputs,
) -> int:
    """Write the policies and, to stderr, the list of unsupported settings; return the exit code.

    0, or 1 with ``strict`` and an unsupported setting, or 2 if a file is invalid, yields no policy or lacks a pool
    of ``--model``. Policies are written completely or not at all.
    """
    try:
        result = translate(source_documents(files, noun))
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        return 2
    if result.unknown_models:
        click.echo(f"--model: no pool {names_text(result.unknown_models)} in these files", err=True)
        return 2
    click.echo(_listing(result, outputs.form), err=True, nl=False)
    if not result.text:
        if outputs.form not in DATA:  # stderr must stay parseable
            click.echo("these files yield no policy", err=True)
        return 2
    write_out(outputs.out, result.text)
    return 1 if outputs.strict and not result.understood else 0


def _listing(result: ImportResult, form: OutputForm) -> str:
    if form in DATA:
        counts = {one.value: sum(remark.sort is one for remark in result.remarks) for one in RemarkKind}
        record = {"summary": counts, "remarks": [one.record() for one in result.remarks]}
        return as_data(record, form)
    return "".join(f"{printable(_line(one))}\n" for one in result.remarks)


def _line(remark: ImportRemark) -> str:
    return str(remark).replace("\n", "\0")
