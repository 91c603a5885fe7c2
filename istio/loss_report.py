"""Options, output and loss report of all exports.

Objects go to stdout or into a folder, the loss report to stderr or into a file: ``switchgear export ... | kubectl
apply -f -`` applies the objects and shows the losses. The report lists the fate of every field, as text or JSON.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import click
import yaml
from pydantic import TypeAdapter, ValidationError

from command_line.out_option import STDOUT
from command_line.table import Role, TableColumn, table_lines
from istio.fidelity import ExportResult, FieldFidelity, worst_fidelity
from policies.fidelity import Fidelity
from policies.findings import PolicyErrors
from policies.model import PolicySet
from policies.quantity import Name
from xds_server.cli.diagnostics import as_text, from_errors, printable
from xds_server.cli.policies_option import load_policies, policies_option

BUILT_IN: Final = "default"
"""``set_by`` of a field that no policy sets."""

_NAMES: Final[TypeAdapter[str]] = TypeAdapter(Name)
_COLUMNS: Final = (
    TableColumn(title="fate"),
    TableColumn(title="field", role=Role.IDENTITY),
    TableColumn(title="value", role=Role.FREE),
    TableColumn(title="set by"),
    TableColumn(title="how", role=Role.FREE),
)


class ExportFailOn(StrEnum):
    """Fate of a set field, or worse, for which the exit code is 1."""

    LOST = "lost"
    APPROXIMATED = "approximated"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of an export.

    ``namespace`` is for documents without one. ``out`` is None for stdout, ``report_to`` None for stderr.
    """

    filename: tuple[Path, ...]
    namespace: str
    host_suffix: str
    out: Path | None
    form: str
    report: str
    report_to: Path | None
    fail_on: ExportFailOn


def _name(_context: click.Context, _option: click.Parameter, text: str) -> str:
    try:
        return _NAMES.validate_python(text)
    except ValidationError:
        raise click.BadParameter(
            f"{text!r} is not a name: use lower-case letters, digits and dashes, at most 63"
        ) from None


def _suffix(_context: click.Context, _option: click.Parameter, text: str) -> str:
    labels = text.split(".")
    if len(text) > 120:
        raise click.BadParameter("a host suffix must have at most 120 characters")
    for label in labels:
        try:
            _NAMES.validate_python(label)
        except ValidationError:
            raise click.BadParameter(f"{text!r} is not a host suffix: write e.g. svc.cluster.local") from None
    return text


_OPTIONS: Final = (
    policies_option(required=True),
    click.option(
        "--namespace",
        default="default",
        show_default=True,
        callback=_name,
        help="Namespace of documents without one.",
    ),
    click.option(
        "--host-suffix",
        default="svc.cluster.local",
        show_default=True,
        callback=_suffix,
        help="Suffix of service hosts, after NAME.NAMESPACE.",
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path, allow_dash=True, file_okay=False),
        metavar="DIR",
        help="Write one file per object into this folder; - or absent: stdout.",
    ),
    click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(["yaml", "json"]),
        default="yaml",
        show_default=True,
        help="Output format of the objects.",
    ),
    click.option(
        "--report",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of the loss report.",
    ),
    click.option(
        "--report-to",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the loss report to this file instead of stderr.",
    ),
    click.option(
        "--fail-on",
        type=click.Choice([one.value for one in ExportFailOn]),
        default=ExportFailOn.NEVER.value,
        show_default=True,
        help="Exit 1 if a field set by a policy meets this fate or a worse one.",
    ),
)


def export_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of all exports to a subcommand; its function gets ``options``."""

    @functools.wraps(function)
    def wrapped(
        *,
        filename: tuple[Path, ...],
        namespace: str,
        host_suffix: str,
        out: Path | None,
        form: str,
        report: str,
        report_to: Path | None,
        fail_on: str,
        **rest: Any,
    ) -> int:
        options = ExportOptions(
            filename=filename,
            namespace=namespace,
            host_suffix=host_suffix,
            out=None if out == STDOUT else out,
            form=form,
            report=report,
            report_to=report_to,
            fail_on=ExportFailOn(fail_on),
        )
        return function(options=options, **rest)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def export(
    options: ExportOptions, exported: Callable[[PolicySet], ExportResult], notes: Sequence[str] = ()
) -> int:
    """Load the policies, write objects and loss report, and return the exit code.

    ``notes`` are sentences below every report: losses that no policy changes.
    0, or 1 for invalid policies, a document that cannot be exported or ``--fail-on``, or 2 if something cannot be
    written.
    """
    try:
        policies = load_policies(options.filename)
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        given = {str(path) for path in options.filename}
        wrong = all(getattr(one, "code", "") == "SG001" and _file(one) in given for one in errors.exceptions)
        return 2 if wrong else 1
    result = exported(policies)
    try:
        if options.out is not None:
            write_objects(result.objects, options.out, options.form)
        elif options.form == "json":
            click.echo(json_list(result.objects), nl=False)
        else:
            click.echo(yaml_stream(result.objects), nl=False)
        report = (as_json if options.report == "json" else as_table)(result, notes)
        if options.report_to is None:
            click.echo(report, nl=False, err=True)
        else:
            options.report_to.write_text(report, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename or 'the output'}: {error.strerror}") from None
    for document, reason in result.left_out.items():
        click.echo(printable(f"Error: {document} was not exported: {reason}"), err=True)
    return 1 if result.left_out or threshold_reached(result.fields, options.fail_on) else 0


def _file(error: Exception) -> str:
    origin = getattr(error, "origin", None)
    return str(getattr(origin, "file", ""))


def threshold_reached(fates: Sequence[FieldFidelity], fail_on: ExportFailOn) -> bool:
    """Whether a field set by a policy met this fate or a worse one."""
    if fail_on is ExportFailOn.NEVER:
        return False
    order = list(Fidelity)
    return order.index(worst_fidelity(fates)) >= order.index(Fidelity(fail_on.value))


def yaml_stream(objects: Iterable[Mapping[str, object]]) -> str:
    """The objects as a YAML stream, in order; equal objects give equal text."""
    return "".join(f"---\n{_yaml(one)}" for one in objects)


def json_list(objects: Iterable[Mapping[str, object]]) -> str:
    """The objects as one JSON ``List``, which kubectl applies."""
    return _json({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def write_objects(objects: Iterable[Mapping[str, object]], folder: Path, form: str = "yaml") -> None:
    """Write one file per object; numbered, because ``kubectl apply -f FOLDER`` sorts by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(objects, start=1):
        path = folder / f"{number:03d}-{str(one['kind']).lower()}-{_name_of(one)}.{form}"
        path.write_text(_json(one) if form == "json" else _yaml(one), encoding="utf-8")


def _name_of(one: Mapping[str, object]) -> str:
    metadata = one["metadata"]
    return f"{metadata['namespace']}-{metadata['name']}" if isinstance(metadata, Mapping) else ""


def _yaml(one: Mapping[str, object]) -> str:
    text: str = yaml.dump(dict(one), Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def _json(document: Mapping[str, object]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_json(exported: ExportResult, notes: Sequence[str] = ()) -> str:
    """The report as JSON: counts, object names, and one record per field of each document."""
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
    """The report as text: set fields, worst first per document; then lost defaults.

    A lost default still acts where Switchgear serves, so each reason gets a line. Other defaults are counted.
    """
    lines = []
    order = list(Fidelity)
    set_fields = [one for one in exported.fields if one.set_by != BUILT_IN]
    for document in dict.fromkeys(one.document for one in set_fields):
        of_document = [one for one in set_fields if one.document == document]
        rows = [
            (one.fate.value, *map(printable, (one.path, one.value, one.set_by, _how(one))))
            for one in sorted(of_document, key=lambda one: -order.index(one.fate))
        ]
        lines += [f"{printable(document)}:", *table_lines(_COLUMNS, rows), ""]
    defaults = [one for one in exported.fields if one.set_by == BUILT_IN and one.fate is Fidelity.LOST]
    if defaults:
        lines.append("Lost defaults:")
    for how in dict.fromkeys(one.how for one in defaults):
        paths = tuple(dict.fromkeys(one.path for one in defaults if one.how == how))
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        lines.append(printable(f"- {paths[0]}{more}: {how}"))
    return "".join(f"{line}\n" for line in (*lines, *map(printable, notes), _summary(exported)))


def _how(one: FieldFidelity) -> str:
    return f"{one.how} [{one.target}]" if one.target else one.how


def _summary(exported: ExportResult) -> str:
    every = _counts(exported.fields)
    set_fields = _counts([one for one in exported.fields if one.set_by != BUILT_IN])
    parts = ", ".join(f"{set_fields[fate]} {fate}" for fate in set_fields)
    rest = ", ".join(f"{every[fate] - set_fields[fate]} {fate}" for fate in every)
    return f"{len(exported.objects)} objects; set fields: {parts}; defaults: {rest}"


def _counts(fates: Sequence[FieldFidelity]) -> dict[str, int]:
    return {fate.value: sum(one.fate is fate for one in fates) for fate in Fidelity}
