"""``switchgear get``: engines, pools, zones, proxies, orders, events, the audit log and the shadow report."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import yaml
from rich.live import Live
from rich.text import Text

from command_line.output_format import DATA, as_data, output_option
from policies.findings import did_you_mean
from policies.quantity import parse_duration
from xds_server.admin_api.endpoints import POLICIES
from xds_server.cli.admin_client import fetch
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.cli.get_columns import TABLES, Column, TableSpec
from xds_server.cli.output_format import console, redrawn

_UNBOUNDED: Final = 10_000
_WIDEST: Final = 40
"""Room a column is given. A longer cell pushes its own line aside, not what all others say out of the terminal."""
_BY_NAME: Final = tuple(name for name, table in TABLES.items() if table.by)
_BY_TIME: Final = tuple(name for name, table in TABLES.items() if table.age_s)
_BY_POOL: Final = tuple(name for name, table in TABLES.items() if table.belongs)
_STYLES: Final = {"UNHEALTHY": "bold red", "DRAINING": "yellow", "HEALTHY": "green"}


@click.command(
    name="get",
    short_help="Show engines, pools, zones, proxies, orders, events, the audit log or the shadow report.",
)
@click.argument("what", type=click.Choice(list(TABLES)))
@connection_options
@click.option(
    "--pool",
    default="",
    metavar="POOL",
    shell_complete=complete_names("pools"),
    help="Only what belongs to this pool.",
)
@click.option("--by", default="", metavar="NAME", help="Only of whoever has this in their name (orders, audit).")
@click.option("--since", default="", metavar="DURATION", help="Only of so long ago or later (events, audit).")
@output_option("table", "wide", *DATA)
@click.option("--watch", "-w", is_flag=True, help="Go on; on a pipe, print what becomes different.")
@click.option("--interval", default="1s", show_default=True, metavar="DURATION", help="How often --watch asks.")
def command(
    *,
    what: str,
    admin: str,
    pool: str,
    by: str,
    since: str,
    output: str,
    watch: bool,
    interval: str,
) -> int:
    """Show one kind of thing in full; `switchgear status` is the overview, `switchgear why` the reasons.

    audit: every attempt to change something over the admin port, the newest thousand of known callers and the
    newest thousand of others, since the server started. Its log has them all (admin.write).

    shadow: what decisions that are not enforced would have done since the server started.

    Exit code: 0, or 2 when the server cannot be asked or has no such pool.
    """
    for name, said, kinds in (("--pool", pool, _BY_POOL), ("--by", by, _BY_NAME), ("--since", since, _BY_TIME)):
        if said and what not in kinds:
            raise click.UsageError(f"{name} is for {', '.join(kinds)}; {what} cannot be told apart by it")
    try:
        since_s = parse_duration(since) if since else None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
    query = _Query(admin=admin, kind=TABLES[what], pool=pool, by=by, since_s=since_s, output=output)
    try:
        pause_s = max(0.1, parse_duration(interval))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--interval") from error
    items = query.items()
    if watch:
        _watch(query, items, pause_s)
    elif query.data:
        click.echo(as_data({what: [item.document for item in items]}, output), nl=False)
    else:
        out = console()
        # A reader that is no terminal gets whole lines, however long.
        width = out.width if sys.stdout.isatty() else _UNBOUNDED
        out.print(_shown(query.kind, items, query.wide, width), soft_wrap=True)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One row, and the JSON of it as the server sent it."""

    row: Any
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """Which rows of which server, and in which form."""

    admin: str
    kind: TableSpec[Any, Any]
    pool: str
    by: str
    since_s: float | None
    output: str

    @property
    def wide(self) -> bool:
        return self.output == "wide"

    @property
    def data(self) -> bool:
        return self.output in DATA

    def items(self) -> list[_Item]:
        """The rows now; ``click.ClickException`` when the server is unavailable, or has no such pool."""
        answer, kind = fetch(self.admin, self.kind.endpoint), self.kind
        documents = [document for part in kind.parts for document in answer.document[part]]
        items = [
            _Item(row=row, document=document)
            for row, document in zip(kind.rows(answer.value), documents, strict=True)
        ]
        if self.by and kind.by is not None:
            items = [item for item in items if self.by in kind.by(item.row)]
        if self.since_s is not None and kind.age_s is not None:
            items = [item for item in items if kind.age_s(item.row) <= self.since_s]
        if not self.pool or kind.belongs is None:
            return items
        known = fetch(self.admin, POLICIES).value.pools
        if self.pool not in known:
            hint = did_you_mean(self.pool, known)
            raise click.UsageError(f"there is no pool {self.pool!r}{f'; {hint}' if hint else ''}")
        return [item for item in items if kind.belongs(item.row, self.pool)]


def _shown(kind: TableSpec[Any, Any], items: Sequence[_Item], wide: bool, width: int) -> Text:
    """The table, each line cut where the terminal ends: a row that runs over two lines is read as two."""
    if not items:
        return Text(kind.none)
    columns = [column for column in kind.columns if wide or not column.wide]
    rows = [[_cell(column, item) for column in columns] for item in items]
    titles = [column.title for column in columns]
    widths = [min(_WIDEST, max(map(len, cells))) for cells in zip(titles, *rows, strict=True)]
    lines = []
    for row in (titles, *rows):
        line = Text()
        for column, cell, wanted in zip(columns, row, widths, strict=True):
            padded = cell.rjust(wanted) if column.right else cell.ljust(wanted)
            line.append(padded, style="bold" if row is titles else _STYLES.get(cell, ""))
            line.append("  ")
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return Text("\n").join(lines)


def _cell(column: Column[Any], item: _Item) -> str:
    return printable(column.cell(item.row)).replace("\n", " ")


def _watch(query: _Query, items: list[_Item], pause_s: float) -> None:
    if not redrawn() or query.data:
        _follow(query, items, pause_s)
        return
    out, trouble = console(), ""
    with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            live.update(_picture(query, items, trouble, out.width), refresh=True)
            time.sleep(pause_s)
            try:
                items, trouble = query.items(), ""
            except click.ClickException as error:
                trouble = error.format_message()


def _picture(query: _Query, items: Sequence[_Item], trouble: str, width: int) -> Text:
    """The table; below what is wrong where nobody answers, so that nobody takes what was for what is."""
    table = _shown(query.kind, items, query.wide, width)
    if not trouble:
        return table
    lines = [
        Text(printable(trouble).replace("\n", " "), style="bold red"),
        Text("below is what was last known", style="yellow"),
    ]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join([*lines, table])


def _follow(query: _Query, items: list[_Item], pause_s: float) -> None:
    """Print every item once, then those whose state becomes different, and the names of those that go."""
    known: dict[str, tuple[str, ...]] = {}
    trouble = ""
    while True:
        for line in _news(query.kind, items, known, query.output):
            click.echo(line)
        sys.stdout.flush()
        time.sleep(pause_s)
        try:
            items = query.items()
            if trouble:
                trouble = ""
                click.echo("it answers again", err=True)
        except click.ClickException as error:
            if trouble != error.format_message():
                trouble = error.format_message()
                click.echo(printable(trouble), err=True)


def _news(
    kind: TableSpec[Any, Any], items: Sequence[_Item], known: dict[str, tuple[str, ...]], output: str
) -> Iterator[str]:
    present = {kind.name(item.row): item for item in items}
    for name, item in present.items():
        state = tuple(column.cell(item.row) for column in kind.columns if column.state)
        if known.get(name) != state:
            known[name] = state
            yield _line(kind, item, output)
    for name in [name for name in known if name not in present]:
        del known[name]
        yield json.dumps({"gone": name}) if output in DATA else f"{printable(name)} is gone"


def _line(kind: TableSpec[Any, Any], item: _Item, output: str) -> str:
    if output == "json":
        return json.dumps(item.document, ensure_ascii=False)
    if output == "yaml":
        return f"---\n{yaml.safe_dump(dict(item.document), sort_keys=False, allow_unicode=True)}".rstrip()
    columns = [column for column in kind.columns if output == "wide" or not column.wide]
    return "  ".join(_cell(column, item) for column in columns)
