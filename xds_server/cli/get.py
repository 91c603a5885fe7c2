"""``switchgear get``: lists of engines, pools, zones, proxies, objectives, orders, events and more."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import click

from command_line.output_format import (
    DATA,
    LIST_FORMS,
    OutputForm,
    as_csv,
    as_data,
    custom_rows,
    list_output_option,
    show_custom_columns,
)
from command_line.selector import Selector, selector_option
from command_line.table import (
    Cell,
    Role,
    StyledText,
    TableColumn,
    end_cut,
    show_table,
    table_lines,
    terminal_width,
)
from policies.findings import did_you_mean
from policies.quantity import parse_duration
from xds_server.admin_api.endpoints import POLICIES
from xds_server.cli.admin_client import fetch
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.cli.get_columns import TABLES, Column, TableSpec
from xds_server.cli.output_format import redrawn
from xds_server.cli.resource_types import complete_resources, parse_resources
from xds_server.cli.watch import LiveScreen

_BY_NAME: Final = tuple(name for name, table in TABLES.items() if table.by)
_BY_TIME: Final = tuple(name for name, table in TABLES.items() if table.age_s)
_BY_POOL: Final = tuple(name for name, table in TABLES.items() if table.belongs)
_STYLES: Final = {
    "UNHEALTHY": "bold red",
    "DRAINING": "yellow",
    "HEALTHY": "green",
    "burns-fast": "bold red",
    "burns-slowly": "yellow",
    "missed": "yellow",
    "met": "green",
}


def _duration(_context: click.Context, _option: click.Parameter, text: str) -> float | None:
    try:
        return parse_duration(text) if text else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(name="get", short_help="List engines, pools, zones, proxies, orders, events and more.")
@click.argument(
    "resources",
    nargs=-1,
    required=True,
    callback=parse_resources,
    metavar="TYPE [NAME ...] | TYPE/NAME ...",
    shell_complete=complete_resources,
)
@connection_options
@selector_option("health!=HEALTHY,zone in (a,b)")
@click.option(
    "--pool", default="", metavar="POOL", shell_complete=complete_names("pools"), help="Only rows of this pool."
)
@click.option(
    "--by",
    default="",
    metavar="NAME",
    help="Only changes by callers with NAME in theirs (orders, versions, audit).",
)
@click.option(
    "--since",
    "since_s",
    default="",
    callback=_duration,
    metavar="DURATION",
    help="Only entries newer than DURATION (events, versions, audit, usage).",
)
@list_output_option(*LIST_FORMS, "csv")
@click.option("--watch", "-w", is_flag=True, help="Keep watching; on a pipe, print rows that change.")
@click.option(
    "--interval",
    "interval_s",
    default="1s",
    show_default=True,
    callback=_duration,
    metavar="DURATION",
    help="Time between requests of --watch.",
)
def command(
    *,
    resources: Mapping[str, tuple[str, ...]],
    output: OutputForm,
    no_headers: bool,
    watch: bool,
    interval_s: float,
    **named: Any,
) -> int:
    """List resources of one TYPE, or those that are named.

    \b
    engines (engine, eng)     events (event, ev)
    pools (pool, po)          versions (version, ver): policy versions
    zones (zone, zo)          audit (aud): attempted changes
    proxies (proxy, px)       shadow (sh): what shadowed decisions would do
    orders (order, ord)       objectives (objective, obj): of routes and pools
    tenants (tenant, ten)     usage (use): of tenants, by day and model

    NAME is what the first column shows; an engine may go without its pool. SELECTOR names fields of -o json.
    With one NAME, json, yaml and jsonpath have the object itself. In jsonpath a list is also `.items`, and each
    row has a `name`: -o jsonpath='{range .items[*]}{.name}{"\\n"}{end}'. csv has the fields of json in columns,
    for one TYPE.

    audit has the newest 1000 attempts of known callers and of others, since the server started; its log
    (admin.write) has all.

    Exit code: 0, 1 when a NAME is not found, 2 when no server answers or --pool is unknown.
    """
    filters = _Filters(**named)
    queries = [
        _Query(plural=plural, kind=TABLES[plural], names=names, filters=filters)
        for plural, names in resources.items()
    ]
    for query in queries:
        query.check()
    if output == "csv" and (watch or len(queries) > 1):
        raise click.UsageError("-o csv goes with one TYPE, without --watch")
    printer = _Printer(output=output, headers=not no_headers)
    if watch:
        if len(queries) > 1:
            raise click.UsageError("--watch goes with one TYPE")
        _watch(queries[0], printer, max(0.1, interval_s or 1.0))
    return printer.show(queries)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One row, its name, and its JSON as the server sent it."""

    row: Any
    name: str
    document: Mapping[str, Any]

    @property
    def fields(self) -> Mapping[str, Any]:
        """What selectors and expressions see: the JSON, the name, and labels at the top."""
        labels = self.document.get("labels")
        return {**(labels if isinstance(labels, Mapping) else {}), "name": self.name, **self.document}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filters:
    """The options that choose rows."""

    admin: str
    selector: Selector
    pool: str
    by: str
    since_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """Which rows of one type."""

    plural: str
    kind: TableSpec[Any, Any]
    names: tuple[str, ...]
    filters: _Filters
    missing: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Usage error where an option cannot be used with this type."""
        filters = self.filters
        for option, value, kinds in (
            ("--pool", filters.pool, _BY_POOL),
            ("--by", filters.by, _BY_NAME),
            ("--since", filters.since_s is not None, _BY_TIME),
        ):
            if value and self.plural not in kinds:
                raise click.UsageError(f"{option} works with {', '.join(kinds)}, not with {self.plural}")
        if self.names and self.kind.named is None:
            raise click.UsageError(f"entries of {self.plural} have no names; use --by or -l")

    def items(self) -> list[_Item]:
        """The rows now; ``click.ClickException`` when the server is unavailable, or has no such pool or field."""
        kind, filters = self.kind, self.filters
        answer = fetch(filters.admin, kind.endpoint)
        documents = [document for part in kind.parts for document in answer.document[part]]
        items = [
            _Item(row=row, name=kind.name(row), document=document)
            for row, document in zip(kind.rows(answer.value), documents, strict=True)
        ]
        self._check_fields(items)
        items = [item for item in items if filters.selector.matches(item.fields)]
        if filters.by and kind.by is not None:
            items = [item for item in items if filters.by in kind.by(item.row)]
        if filters.since_s is not None and kind.age_s is not None:
            items = [item for item in items if kind.age_s(item.row) <= filters.since_s]
        if filters.pool and kind.belongs is not None:
            self._check_pool()
            items = [item for item in items if kind.belongs(item.row, filters.pool)]
        return self._named(items)

    def _named(self, items: list[_Item]) -> list[_Item]:
        named = self.kind.named
        if not self.names or named is None:
            return items
        self.missing[:] = [name for name in self.names if not any(named(item.row, name) for item in items)]
        return [item for item in items if any(named(item.row, name) for name in self.names)]

    def _check_fields(self, items: Sequence[_Item]) -> None:
        if not items:
            return
        known = {key for item in items for key in item.fields}
        known |= {one.name for item in items[:1] for one in fields(item.row)}
        for key in sorted(self.filters.selector.keys - known):
            hint = did_you_mean(key, known) or f"fields: {', '.join(sorted(known))}"
            raise click.UsageError(f"-l: {self.plural} have no field {key!r}; {hint}")

    def _check_pool(self) -> None:
        known = fetch(self.filters.admin, POLICIES).value.pools
        if self.filters.pool not in known:
            hint = did_you_mean(self.filters.pool, known)
            raise click.UsageError(f"no pool {self.filters.pool!r}{f'; {hint}' if hint else ''}")

    def report_missing(self) -> int:
        """Name what was not found; the exit code."""
        for name in self.missing:
            click.echo(f"{self.kind.singular} {printable(name)!r} not found", err=True)
        return 1 if self.missing else 0

    def columns(self, *, wide: bool) -> list[Column[Any]]:
        """The columns of the table."""
        return [column for column in self.kind.columns if wide or not column.wide]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Printer:
    """Prints rows in one form."""

    output: OutputForm
    headers: bool

    @property
    def wide(self) -> bool:
        return self.output == "wide"

    def show(self, queries: Sequence[_Query]) -> int:
        """Print the rows of all queries; the exit code."""
        found = [(query, query.items()) for query in queries]
        if self.output in DATA:
            click.echo(as_data(self._document(found), self.output), nl=False)
        else:
            for number, (query, items) in enumerate(found):
                if number and self.output != "name":
                    click.echo()
                self._show_one(query, items)
        return max(query.report_missing() for query, _ in found)

    def _document(self, found: Sequence[tuple[_Query, Sequence[_Item]]]) -> Mapping[str, Any]:
        expression = self.output == "jsonpath"
        rows = {
            query.plural: [item.fields if expression else item.document for item in items]
            for query, items in found
        }
        every = [row for part in rows.values() for row in part]
        if sum(len(query.names) for query, _ in found) == len(every) == 1:
            return every[0]
        return {**rows, "items": every} if expression else rows

    def _show_one(self, query: _Query, items: Sequence[_Item]) -> None:
        if self.output == "name":
            for item in items:
                click.echo(printable(f"{query.kind.singular}/{item.name}"))
        elif self.output == "csv":
            click.echo(as_csv([item.document for item in items], headers=self.headers), nl=False)
        elif self.output == "custom-columns":
            show_custom_columns(self.output, [item.fields for item in items], headers=self.headers)
        elif items:
            columns = query.columns(wide=self.wide)
            show_table(_headers(columns), _rows(columns, items), headers=self.headers, whole=self.wide)
        elif not query.missing:
            click.echo(f"{query.kind.none}{' that match' if query.filters.selector.keys else ''}", err=True)

    def lines(self, query: _Query, items: Sequence[_Item]) -> list[str]:
        """The table for a screen."""
        if not items:
            return [query.kind.none]
        columns = query.columns(wide=self.wide)
        width = None if self.wide else terminal_width()
        return table_lines(_headers(columns), _rows(columns, items), width=width, headers=self.headers)


def _headers(columns: Sequence[Column[Any]]) -> list[TableColumn]:
    return [TableColumn(title=column.title, role=column.role) for column in columns]


def _rows(columns: Sequence[Column[Any]], items: Sequence[_Item]) -> list[list[Cell]]:
    return [[_cell(column, item) for column in columns] for item in items]


def _cell(column: Column[Any], item: _Item) -> Cell:
    text = printable(column.cell(item.row))
    return StyledText(text, _STYLES.get(text, "")) if column.role is Role.WORD else text


def _watch(query: _Query, printer: _Printer, pause_s: float) -> None:
    """Until Ctrl-C."""
    items = query.items()
    if not redrawn() or printer.output not in ("table", "wide"):
        _follow(query, printer, items, pause_s)
        return
    trouble = ""
    with LiveScreen() as screen:
        while True:
            screen.show([*_trouble_lines(trouble), *printer.lines(query, items)])
            time.sleep(pause_s)
            try:
                items, trouble = query.items(), ""
            except click.ClickException as error:
                trouble = error.format_message()


def _trouble_lines(trouble: str) -> Iterator[str]:
    """Above the table while the server does not answer, so that old rows are not taken for the state now."""
    if trouble:
        width = terminal_width() or len(trouble)
        yield click.style(end_cut(printable(trouble).replace("\n", " "), width), fg="red", bold=True)
        yield click.style(end_cut("last known state:", width), fg="yellow")


def _follow(query: _Query, printer: _Printer, items: Sequence[_Item], pause_s: float) -> None:
    """Print every row once, then those whose state changes, and the names of those that go."""
    news = _News(query, printer)
    trouble = ""
    while True:
        for line in news.lines(items):
            click.echo(line)
        sys.stdout.flush()
        time.sleep(pause_s)
        try:
            items = query.items()
            if trouble:
                trouble = ""
                click.echo("the server answers again", err=True)
        except click.ClickException as error:
            if trouble != error.format_message():
                trouble = error.format_message()
                click.echo(printable(trouble), err=True)


class _News:
    """Rows that are new, changed or gone since the last look."""

    def __init__(self, query: _Query, printer: _Printer) -> None:
        self._query = query
        self._printer = printer
        self._states: dict[str, tuple[str, ...]] = {}
        self._widths: list[int] = []
        self._headers = printer.headers
        self._forms: Mapping[str, Callable[[_Item], str]] = {
            "json": lambda item: json.dumps(item.document, ensure_ascii=False),
            "yaml": lambda item: f"---\n{as_data(dict(item.document), 'yaml')}".rstrip(),
            "jsonpath": lambda item: as_data(item.fields, printer.output).rstrip("\n"),
            "name": lambda item: printable(f"{query.kind.singular}/{item.name}"),
        }

    def lines(self, items: Sequence[_Item]) -> Iterator[str]:
        """The lines to print now."""
        present = {item.name: item for item in items}
        changed = []
        for name, item in present.items():
            state = tuple(column.cell(item.row) for column in self._query.kind.columns if column.state)
            if self._states.get(name) != state:
                self._states[name] = state
                changed.append(item)
        yield from self._shown(changed)
        for name in [name for name in self._states if name not in present]:
            del self._states[name]
            yield json.dumps({"gone": name}) if self._printer.output in DATA else f"{printable(name)} is gone"

    def _shown(self, items: Sequence[_Item]) -> Iterator[str]:
        form = self._forms.get(self._printer.output)
        if form:
            yield from map(form, items)
        elif items:
            yield from self._table(items)

    def _table(self, items: Sequence[_Item]) -> Iterator[str]:
        """The rows in columns as wide as those above."""
        if self._printer.output == "custom-columns":
            headers, rows = custom_rows(self._printer.output, [item.fields for item in items])
        else:
            columns = self._query.columns(wide=self._printer.wide)
            headers, rows = _headers(columns), _rows(columns, items)
        lines = table_lines(headers, rows, headers=self._headers, least=self._widths)
        self._headers = False
        yield from lines
