"""What every import has in common at the command line: its options, its two answers and its exit status."""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import click
from pydantic import TypeAdapter, ValidationError

from istio.imports.draft_validation import ImportResult
from istio.imports.import_remarks import ImportRemark, RemarkKind
from istio.imports.policy_drafts import ImportOptions
from istio.imports.source_documents import SourceDocument, source_documents
from policies.findings import PolicyErrors
from policies.quantity import Name
from xds_server.cli.diagnostics import as_text, from_errors, printable

_NAMES: Final[TypeAdapter[str]] = TypeAdapter(Name)


def _name(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return _NAMES.validate_python(text)
    except ValidationError:
        raise click.BadParameter(f"{text!r} is not a name: lower-case letters, digits and dashes") from None


def _models(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    models = {}
    for text in texts:
        pool, _, model = text.partition("=")
        if not pool or not model:
            raise click.BadParameter(f"{text!r} is not POOL=MODEL")
        models[pool] = model
    return models


_OPTIONS: Final = (
    click.argument("files", nargs=-1, required=True, metavar="FILE..."),
    click.option(
        "--namespace",
        callback=_name,
        help="Namespace of the engines, where the files do not say it or say another.",
    ),
    click.option(
        "--listener-port",
        default=10000,
        show_default=True,
        type=click.IntRange(1, 65535),
        help="Where Envoys listen for the routes.",
    ),
    click.option(
        "--model",
        "models",
        multiple=True,
        callback=_models,
        metavar="POOL=MODEL",
        help="Model of a pool, where the files do not say it; may be given more than once.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Form of the list of what was not understood.",
    ),
    click.option("--strict", is_flag=True, help="Exit with 1 when something was not understood."),
)


def import_options(function: Callable[..., int]) -> Callable[..., int]:
    """Gives a subcommand the options of all imports."""

    @functools.wraps(function)
    def taken(
        *,
        files: tuple[str, ...],
        namespace: str | None,
        listener_port: int,
        models: dict[str, str],
        output: str,
        strict: bool,
        **rest: Any,
    ) -> int:
        wishes = ImportOptions(namespace=namespace, listener_port=listener_port, models=models)
        return function(files=files, wishes=wishes, output=output, strict=strict, **rest)

    for option in reversed(_OPTIONS):
        taken = option(taken)
    return taken


def run_import(
    files: Sequence[str],
    noun: str,
    translate: Callable[[Sequence[SourceDocument]], ImportResult],
    *,
    output: str,
    strict: bool,
) -> int:
    """Write the policies to stdout and the list to stderr; the exit status.

    0, or 1 when ``strict`` and something was not understood, or 2 when a file cannot be used or nothing came of
    them. Policies are written when all of them are known, or not at all.
    """
    try:
        result = translate(source_documents(files, noun))
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        return 2
    click.echo(_listing(result, output), err=True, nl=False)
    if not result.text:
        if output == "text":  # behind JSON it would be more than JSON; a summary and the exit status say it
            click.echo("no policy came of these files", err=True)
        return 2
    click.echo(result.text, nl=False)
    return 1 if strict and not result.understood else 0


def _listing(result: ImportResult, output: str) -> str:
    if output == "json":
        counts = {one.value: sum(remark.sort is one for remark in result.remarks) for one in RemarkKind}
        record = {"summary": counts, "remarks": [one.record() for one in result.remarks]}
        return json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    return "".join(f"{printable(_line(one))}\n" for one in result.remarks)


def _line(remark: ImportRemark) -> str:
    return str(remark).replace("\n", "\0")
