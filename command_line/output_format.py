"""``-o``, the form of an answer: the same for every command.

Lists take ``table``, ``wide``, ``name``, ``json``, ``yaml``, ``jsonpath=TEMPLATE`` and ``custom-columns=SPEC``;
some also ``csv``; answers in prose take ``text``, ``json``, ``yaml`` and ``jsonpath=TEMPLATE``.
"""

import csv
import difflib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from command_line.jsonpath import JsonPathError, Path, Template, parse_path, parse_template, scalar_text
from command_line.table import Cell, TableColumn, show_table

DATA: Final = ("json", "yaml", "jsonpath")
"""Forms that ``as_data`` writes."""

LIST_FORMS: Final = ("table", "wide", "name", "json", "yaml", "jsonpath", "custom-columns")
TEXT_FORMS: Final = ("text", "json", "yaml", "jsonpath")

_WITH_ARGUMENT: Final = {"jsonpath": "TEMPLATE", "custom-columns": "HEADER:PATH,..."}
_NONE: Final = "<none>"
_FORMULA: Final = ("=", "+", "-", "@")
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class CustomColumn:
    """One column of ``custom-columns``: its header, and the path of its values in a row's JSON."""

    title: str
    path: Path


class OutputForm(str):
    """The form, equal to its name (``form == "json"``), with what stands behind ``=`` parsed."""

    template: Template | None
    columns: tuple[CustomColumn, ...]

    def __new__(
        cls, name: str, template: Template | None = None, columns: tuple[CustomColumn, ...] = ()
    ) -> "OutputForm":
        form = super().__new__(cls, name)
        form.template = template
        form.columns = columns
        return form


class OutputFormType(click.ParamType):  # type: ignore[type-arg]  # it takes none before click 8.4
    """One of these forms, by name; ``jsonpath`` and ``custom-columns`` with their argument."""

    name = "format"

    def __init__(self, forms: Sequence[str]) -> None:
        self.forms = tuple(forms)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        return "FORMAT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OutputForm:
        """The form; wrong names and expressions are refused with what is allowed."""
        if isinstance(value, OutputForm):
            return value
        name, equals, argument = str(value).partition("=")
        if name not in self.forms:
            near = difflib.get_close_matches(name, self.forms, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.fail(f"unknown format {str(value)!r}{hint} Allowed: {self.listed()}", param, ctx)
        if name not in _WITH_ARGUMENT:
            if equals:
                self.fail(f"{name} takes no argument", param, ctx)
            return OutputForm(name)
        if not argument:
            self.fail(f"{name} needs an argument: {name}={_WITH_ARGUMENT[name]}", param, ctx)
        try:
            if name == "jsonpath":
                return OutputForm(name, template=parse_template(argument))
            return OutputForm(name, columns=custom_columns(argument))
        except JsonPathError as error:
            self.fail(f"{name}: {error}", param, ctx)

    def listed(self) -> str:
        """The forms as the help shows them."""
        return "|".join(f"{one}=" if one in _WITH_ARGUMENT else one for one in self.forms)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """The names."""
        return [CompletionItem(one) for one in self.forms if one.startswith(incomplete)]


def output_option(*forms: str, default: str = "", text: str = "Output format") -> Callable[[_Command], _Command]:
    """``-o/--output`` with these forms; those of an answer in prose when none are named.

    The command gets ``output``, an ``OutputForm``.
    """
    kind = OutputFormType(forms or TEXT_FORMS)
    return click.option(
        "--output",
        "-o",
        type=kind,
        default=default or kind.forms[0],
        help=f"{text.rstrip('.')}: {kind.listed()}.",
        show_default=True,
    )


def list_output_option(*forms: str, default: str = "table") -> Callable[[_Command], _Command]:
    """``-o`` with all forms of a list, and ``--no-headers``; the command gets ``output`` and ``no_headers``."""

    def decorate(command: _Command) -> _Command:
        command = click.option("--no-headers", is_flag=True, help="Print no header line.")(command)
        return output_option(*(forms or LIST_FORMS), default=default)(command)

    return decorate


def as_data(answer: Any, form: str) -> str:
    """The answer as JSON, YAML or through its JSONPath template, ending in a newline."""
    if form == "yaml":
        import yaml  # noqa: PLC0415 - most answers need none

        return str(yaml.safe_dump(answer, sort_keys=False, allow_unicode=True))
    if isinstance(form, OutputForm) and form.template is not None:
        text = form.template.render(answer)
        text = text if text.endswith("\n") or not text else f"{text}\n"
    else:
        text = json.dumps(answer, indent=2, ensure_ascii=False) + "\n"
    # JSON may hold half of a surrogate pair, UTF-8 may not: it stays an escape.
    return text.encode("utf-8", "backslashreplace").decode()


def as_csv(documents: Sequence[Mapping[str, Any]], *, headers: bool = True) -> str:
    """One line for each document, with a column for each field (RFC 4180); lists and objects as JSON.

    Text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    text = io.StringIO()
    columns = list(dict.fromkeys(name for one in documents for name in one))
    lines = csv.writer(text)
    if headers and columns:
        lines.writerow(columns)
    for one in documents:
        lines.writerow([_csv_value(one.get(name)) for name in columns])
    return text.getvalue()


def _csv_value(value: Any) -> Any:
    if isinstance(value, Mapping | list | bool):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        return value
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in value)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def show_custom_columns(form: OutputForm, documents: Sequence[Any], *, headers: bool = True) -> None:
    """Print ``custom-columns``: one row for each document, never cut."""
    columns, rows = custom_rows(form, documents)
    show_table(columns, rows, headers=headers, whole=True)


def custom_rows(form: OutputForm, documents: Sequence[Any]) -> tuple[list[TableColumn], list[list[Cell]]]:
    """Columns and rows of ``custom-columns``."""
    rows: list[list[Cell]] = [[_value(one.path, document) for one in form.columns] for document in documents]
    return [TableColumn(title=one.title) for one in form.columns], rows


def _value(path: Path, document: Any) -> str:
    found = path.find(document, document)
    return ",".join(_NONE if one is None else scalar_text(one) for one in found) or _NONE


def custom_columns(spec: str) -> tuple[CustomColumn, ...]:
    """The columns of ``NAME:.engine,HEALTH:.health``; ``JsonPathError`` where it is malformed."""
    columns = []
    for part in _split(spec):
        title, colon, path = part.partition(":")
        if not (title.strip() and colon and path.strip()):
            raise JsonPathError(f"{part!r} is not HEADER:PATH, such as HEALTH:.health")
        columns.append(CustomColumn(title.strip(), parse_path(path)))
    return tuple(columns)


def _split(spec: str) -> list[str]:
    """The parts between commas, those in brackets, braces and quotes left alone."""
    parts, depth, quote = [""], 0, ""
    for one in spec:
        if quote:
            quote = "" if one == quote else quote
        elif one in "'\"":
            quote = one
        elif one in "[({":
            depth += 1
        elif one in "])}":
            depth -= 1
        if one == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += one
    return parts
