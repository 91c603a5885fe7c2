"""``switchgear get``: engines, pools, zones, proxies, orders, events, the audit log and the shadow report."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import click
import yaml
from rich.live import Live
from rich.text import Text

from policies.findings import did_you_mean
from policies.quantity import parse_duration
from xds_server.cli.admin_client import admin_option, request_json
from xds_server.cli.completion import complete_names
from xds_server.cli.diagnostics import printable
from xds_server.cli.get_columns import TABLES, Column, Item, TableSpec
from xds_server.cli.output_format import DATA, as_data, console, output_option, redrawn

_UNBOUNDED: Final = 10_000
_WIDEST: Final = 40
"""Room a column is given. A longer cell pushes its own line aside, not what all others say out of the terminal."""
_BY_NAME: Final = ("orders", "audit")
_BY_TIME: Final = ("events", "audit")
_BY_POOL: Final = tuple(name for name in TABLES if name != "audit")
_STYLES: Final = {"UNHEALTHY": "bold red", "DRAINING": "yellow", "HEALTHY": "green"}


@click.command(
    name="get",
    short_help="Show engines, pools, zones, proxies, orders, events, the audit log or the shadow report.",
)
@click.argument("what", type=click.Choice(list(TABLES)))
@admin_option
@click.option(
    "--pool",
    default="",
    metavar="POOL",
    shell_complete=complete_names("pools"),
    help="Only what belongs to this pool.",
)
@click.option("--by", default="", metavar="NAME", help="Only of whoever has this in their name (orders, audit).")
@click.option("--since", default="", metavar="DURATION", help="Only of so long ago or later (events, audit).")
@output_option("table", "wide", default="table", text="Form of the answer; wide has more columns.")
@click.option("--watch", "-w", is_flag=True, help="Go on; on a pipe, print what becomes different.")
@click.option("--interval", default="1s", show_default=True, metavar="DURATION", help="How often --watch asks.")
def command(
    *, what: str, admin: str, pool: str, by: str, since: str, output: str, watch: bool, interval: str
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
    asked = _Asked(admin=admin, kind=TABLES[what], pool=pool, by=by, since_s=since_s, output=output)
    try:
        pause_s = max(0.1, parse_duration(interval))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--interval") from error
    items = asked.items()
    if watch:
        _watch(asked, items, pause_s)
    elif asked.data:
        click.echo(as_data({what: items}, output), nl=False)
    else:
        out = console()
        # A reader that is no terminal gets whole lines, however long.
        width = out.width if sys.stdout.isatty() else _UNBOUNDED
        out.print(_shown(asked.kind, items, asked.wide, width), soft_wrap=True)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is wanted, of whom, and in which form."""

    admin: str
    kind: TableSpec
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

    def items(self) -> list[Item]:
        """What there is now; ``click.ClickException`` when the server cannot be asked, or has no such pool."""
        answer = request_json(self.admin, self.kind.path)
        items: list[Item] = [item for part in self.kind.parts for item in answer[part]]
        if self.by:
            items = [item for item in items if self.by in item["by"]]
        if self.since_s is not None:
            items = [item for item in items if _age_s(item) <= self.since_s]
        if not self.pool:
            return items
        known = list(map(str, request_json(self.admin, "/v1/policies")["pools"]))
        if self.pool not in known:
            hint = did_you_mean(self.pool, known)
            raise click.UsageError(f"there is no pool {self.pool!r}{f'; {hint}' if hint else ''}")
        return [item for item in items if _belongs(item, self.pool)]


def _age_s(item: Item) -> float:
    """How long ago it was: by the server's clock where it says so, else by both clocks."""
    return float(item["age_s"] if "age_s" in item else time.time() - item["at_unix_s"])


def _belongs(item: Item, pool: str) -> bool:
    if "pool" in item:
        return bool(item["pool"] == pool)
    return not item["pools"] or pool in item["pools"]  # a proxy; one that is served all pools names none


def _shown(kind: TableSpec, items: Sequence[Item], wide: bool, width: int) -> Text:
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


def _cell(column: Column, item: Item) -> str:
    return printable(column.cell(item)).replace("\n", " ")


def _watch(asked: _Asked, items: list[Item], pause_s: float) -> None:
    if not redrawn() or asked.data:
        _follow(asked, items, pause_s)
        return
    out, trouble = console(), ""
    with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            live.update(_picture(asked, items, trouble, out.width), refresh=True)
            time.sleep(pause_s)
            try:
                items, trouble = asked.items(), ""
            except click.ClickException as error:
                trouble = error.format_message()


def _picture(asked: _Asked, items: Sequence[Item], trouble: str, width: int) -> Text:
    """The table; below what is wrong where nobody answers, so that nobody takes what was for what is."""
    table = _shown(asked.kind, items, asked.wide, width)
    if not trouble:
        return table
    lines = [
        Text(printable(trouble).replace("\n", " "), style="bold red"),
        Text("below is what was last known", style="yellow"),
    ]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join([*lines, table])


def _follow(asked: _Asked, items: list[Item], pause_s: float) -> None:
    """Print every item once, then those whose state becomes different, and the names of those that go."""
    known: dict[str, tuple[str, ...]] = {}
    trouble = ""
    while True:
        for line in _news(asked.kind, items, known, asked.output):
            click.echo(line)
        sys.stdout.flush()
        time.sleep(pause_s)
        try:
            items = asked.items()
            if trouble:
                trouble = ""
                click.echo("it answers again", err=True)
        except click.ClickException as error:
            if trouble != error.format_message():
                trouble = error.format_message()
                click.echo(printable(trouble), err=True)


def _news(kind: TableSpec, items: Sequence[Item], known: dict[str, tuple[str, ...]], output: str) -> Iterator[str]:
    present = {kind.name(item): item for item in items}
    for name, item in present.items():
        state = tuple(column.cell(item) for column in kind.columns if column.state)
        if known.get(name) != state:
            known[name] = state
            yield _line(kind, item, output)
    for name in [name for name in known if name not in present]:
        del known[name]
        yield json.dumps({"gone": name}) if output in DATA else f"{printable(name)} is gone"


def _line(kind: TableSpec, item: Item, output: str) -> str:
    if output == "json":
        return json.dumps(item, ensure_ascii=False)
    if output == "yaml":
        return f"---\n{yaml.safe_dump(item, sort_keys=False, allow_unicode=True)}".rstrip()
    columns = [column for column in kind.columns if output == "wide" or not column.wide]
    return "  ".join(_cell(column, item) for column in columns)
