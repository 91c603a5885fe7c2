"""The loss report of an export: what became of every field, as a table for people and as JSON for machines.

Shared by everything that exports: the options at the command line, the report, and the exit status. Objects go to
stdout or into a folder, the report to stderr or into a file, so that ``switchgear export ... | kubectl apply -f
-`` applies the objects and shows what was lost.
"""

import functools
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import click
import yaml
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from istio.fidelity import ExportResult, FieldFidelity, worst_fidelity
from policies.fidelity import Fidelity
from policies.findings import PolicyErrors
from policies.load import load
from policies.model import PolicySet
from policies.quantity import Name
from xds_server.cli.diagnostics import as_text, from_errors, printable

BUILT_IN: Final = "default"
"""``set_by`` of a field that nobody wrote."""

_STYLES: Final = {Fidelity.EXACT: "green", Fidelity.APPROXIMATED: "yellow", Fidelity.LOST: "bold red"}
_UNBOUNDED: Final = 200
_NAMES: Final[TypeAdapter[str]] = TypeAdapter(Name)


class FailOn(StrEnum):
    """From which fate of a field that somebody set on the exit status is 1."""

    LOST = "lost"
    APPROXIMATED = "approximated"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What was asked for at the command line.

    ``namespace`` is for documents that name none. ``output`` is None for stdout, ``report_to`` None for stderr.
    """

    policies: tuple[Path, ...]
    namespace: str
    host_suffix: str
    output: Path | None
    report: str
    report_to: Path | None
    fail_on: FailOn


def _name(_context: click.Context, _option: click.Parameter, text: str) -> str:
    try:
        return _NAMES.validate_python(text)
    except ValidationError:
        raise click.BadParameter(
            f"{text!r} is not a name: lower-case letters, digits and dashes, at most 63"
        ) from None


def _suffix(_context: click.Context, _option: click.Parameter, text: str) -> str:
    labels = text.split(".")
    if len(text) > 120:
        raise click.BadParameter("a host suffix has at most 120 characters")
    for label in labels:
        try:
            _NAMES.validate_python(label)
        except ValidationError:
            raise click.BadParameter(
                f"{text!r} is not a host suffix: write labels with dots between, such as svc.cluster.local"
            ) from None
    return text


_OPTIONS: Final = (
    click.option(
        "--policies",
        multiple=True,
        required=True,
        type=click.Path(path_type=Path),
        help="Policy file or folder; may be given more than once.",
    ),
    click.option(
        "--namespace",
        default="default",
        show_default=True,
        callback=_name,
        help="Namespace of documents that name none.",
    ),
    click.option(
        "--host-suffix",
        default="svc.cluster.local",
        show_default=True,
        callback=_suffix,
        help="What follows NAME.NAMESPACE in the hosts of services.",
    ),
    click.option(
        "-o",
        "--output",
        default="-",
        show_default=True,
        metavar="DIR",
        help="Write one file for each object into this folder; - is a YAML stream on stdout.",
    ),
    click.option(
        "--report",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Form of the loss report.",
    ),
    click.option(
        "--report-to",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the loss report into this file instead of stderr.",
    ),
    click.option(
        "--fail-on",
        type=click.Choice([one.value for one in FailOn]),
        default=FailOn.NEVER.value,
        show_default=True,
        help="Exit with 1 when a field that somebody set meets this fate, or a worse one.",
    ),
)


def export_options(function: Callable[..., int]) -> Callable[..., int]:
    """Gives a subcommand the options of all exports, and its function one ``options``."""

    @functools.wraps(function)
    def taken(
        *,
        policies: tuple[Path, ...],
        namespace: str,
        host_suffix: str,
        output: str,
        report: str,
        report_to: Path | None,
        fail_on: str,
        **rest: Any,
    ) -> int:
        options = ExportOptions(
            policies=policies,
            namespace=namespace,
            host_suffix=host_suffix,
            output=None if output == "-" else Path(output),
            report=report,
            report_to=report_to,
            fail_on=FailOn(fail_on),
        )
        return function(options=options, **rest)

    for option in reversed(_OPTIONS):
        taken = option(taken)
    return taken


def export(
    options: ExportOptions, exported: Callable[[PolicySet], ExportResult], notes: Sequence[str] = ()
) -> int:
    """Load the policies, write what they come to and what is lost of them; the exit status.

    ``notes`` are sentences that stand below every report: what is lost whatever the policies say.
    0, or 1 when the policies have problems or ``--fail-on`` says so, or 2 when something cannot be written.
    """
    try:
        policies = load(options.policies)
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        asked = {str(path) for path in options.policies}
        wrong = all(getattr(one, "code", "") == "SG001" and _file(one) in asked for one in errors.exceptions)
        return 2 if wrong else 1
    result = exported(policies)
    try:
        if options.output is None:
            click.echo(yaml_stream(result.objects), nl=False)
        else:
            write_objects(result.objects, options.output)
        said = (as_json if options.report == "json" else as_table)(result, notes)
        if options.report_to is None:
            click.echo(said, nl=False, err=True)
        else:
            options.report_to.write_text(said, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(
            f"{error.filename or 'the answer'} cannot be written: {error.strerror}"
        ) from None
    return 1 if threshold_reached(result.fields, options.fail_on) else 0


def _file(error: Exception) -> str:
    origin = getattr(error, "origin", None)
    return str(getattr(origin, "file", ""))


def threshold_reached(fates: Sequence[FieldFidelity], fail_on: FailOn) -> bool:
    """Whether a field that somebody set met a fate as bad as this, or worse."""
    if fail_on is FailOn.NEVER:
        return False
    order = list(Fidelity)
    return order.index(worst_fidelity(fates)) >= order.index(Fidelity(fail_on.value))


def yaml_stream(objects: Iterable[Mapping[str, object]]) -> str:
    """The objects as a stream of YAML documents, in their order; equal objects give equal text."""
    return "".join(f"---\n{_yaml(one)}" for one in objects)


def write_objects(objects: Iterable[Mapping[str, object]], folder: Path) -> None:
    """One file for each object; numbered, because ``kubectl apply -f FOLDER`` goes by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(objects, start=1):
        (folder / f"{number:03d}-{str(one['kind']).lower()}-{_name_of(one)}.yaml").write_text(
            _yaml(one), encoding="utf-8"
        )


def _name_of(one: Mapping[str, object]) -> str:
    metadata = one["metadata"]
    return f"{metadata['namespace']}-{metadata['name']}" if isinstance(metadata, Mapping) else ""


def _yaml(one: Mapping[str, object]) -> str:
    text: str = yaml.dump(dict(one), Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def as_json(exported: ExportResult, notes: Sequence[str] = ()) -> str:
    """The report as JSON: counts, objects by name, and one record for each field of each document."""
    record = {
        "summary": {
            "all": _counts(exported.fields),
            "set": _counts([one for one in exported.fields if one.set_by != BUILT_IN]),
            "worst": worst_fidelity(exported.fields).value,
        },
        "objects": [f"{one['kind']}/{_name_of(one)}" for one in exported.objects],
        "fields": [asdict(one) for one in exported.fields],
        "notes": list(notes),
    }
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def as_table(exported: ExportResult, notes: Sequence[str] = ()) -> str:
    """The report as text: what somebody set, worst first in each document; then what else is lost.

    A default that is lost acts where Switchgear serves, so it is told of as well, in one line for each reason.
    What becomes of other defaults is counted.
    """
    out = io.StringIO()
    console = Console(file=out, width=_UNBOUNDED, color_system=None)
    order = list(Fidelity)
    said = [one for one in exported.fields if one.set_by != BUILT_IN]
    for document in dict.fromkeys(one.document for one in said):
        rows = sorted((one for one in said if one.document == document), key=lambda one: -order.index(one.fate))
        table = Table("fate", "field", "value", "set by", "how", title=printable(document), title_justify="left")
        for one in rows:
            table.add_row(
                Text(one.fate.value, style=_STYLES[one.fate]),
                *(Text(printable(text)) for text in (one.path, one.value, one.set_by, _how(one))),
            )
        console.print(table)
    defaults = [one for one in exported.fields if one.set_by == BUILT_IN and one.fate is Fidelity.LOST]
    if defaults:
        console.print(Text("Defaults that do not come along:"))
    for how in dict.fromkeys(one.how for one in defaults):
        paths = tuple(dict.fromkeys(one.path for one in defaults if one.how == how))
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        console.print(Text(printable(f"- {paths[0]}{more}: {how}")), soft_wrap=True)
    for note in notes:
        console.print(Text(printable(note)), soft_wrap=True)
    console.print(Text(_summary(exported)), soft_wrap=True)
    return out.getvalue()


def _how(one: FieldFidelity) -> str:
    return f"{one.how} [{one.target}]" if one.target else one.how


def _summary(exported: ExportResult) -> str:
    every = _counts(exported.fields)
    said = _counts([one for one in exported.fields if one.set_by != BUILT_IN])
    parts = ", ".join(f"{said[fate]} {fate}" for fate in said)
    rest = ", ".join(f"{every[fate] - said[fate]} {fate}" for fate in every)
    return f"{len(exported.objects)} objects; fields that were set: {parts}; defaults: {rest}"


def _counts(fates: Sequence[FieldFidelity]) -> dict[str, int]:
    return {fate.value: sum(one.fate is fate for one in fates) for fate in Fidelity}
