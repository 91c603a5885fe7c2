"""``switchgear tap``: tries of requests as their access logs reach the server, live over ``/v1/tap``."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import click

from command_line.output_format import OutputForm, output_option
from command_line.table import Cell, Role, StyledText, TableColumn, table_lines, terminal_width
from policies.findings import did_you_mean
from xds_server.admin_api.endpoints import POLICIES, TAP, TAP_FILTERS
from xds_server.admin_api.parse import ShapeError, parse
from xds_server.admin_api.tap_types import TapBatch, TappedTry
from xds_server.cli.admin_client import AdminApiError, NoAnswerError, event_stream, fetch
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable

SILENT_S: Final = 10.0
"""Messages come at least every 2 s; after this silence the server counts as gone."""

AGAIN_S: Final = 1.0
_STYLES: Final = {"success": "green", "refused": "yellow", "shed": "yellow", "failure": "red", "timed-out": "red"}


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}s"


_COLUMNS: Final[Sequence[tuple[TableColumn, bool, Callable[[TappedTry], str]]]] = (
    # Column, whether only `-o wide` shows it, and its cell.
    (
        TableColumn(title="time"),
        False,
        lambda one: datetime.fromtimestamp(one.at_unix_s).astimezone().strftime("%H:%M:%S.%f")[:-3],
    ),
    (TableColumn(title="request", role=Role.IDENTITY), False, lambda one: one.request or "-"),
    (TableColumn(title="class", minor=True), False, lambda one: one.priority),
    (TableColumn(title="pool", minor=True), False, lambda one: one.pool),
    (TableColumn(title="engine", role=Role.IDENTITY), False, lambda one: one.engine or "-"),
    (TableColumn(title="try", role=Role.FIGURE), False, lambda one: str(one.number) if one.number else "-"),
    (TableColumn(title="result"), False, lambda one: one.result),
    (TableColumn(title="status", role=Role.FIGURE), False, lambda one: str(one.status) if one.status else "-"),
    (TableColumn(title="total", role=Role.FIGURE), False, lambda one: _seconds(one.total_s)),
    (TableColumn(title="this try", role=Role.FIGURE), True, lambda one: _seconds(one.duration_s)),
    (TableColumn(title="first byte", role=Role.FIGURE), True, lambda one: _seconds(one.first_byte_s)),
    (TableColumn(title="route"), True, lambda one: one.route or "-"),
    (TableColumn(title="proxy"), True, lambda one: one.proxy),
    (TableColumn(title="calls", role=Role.FIGURE), True, lambda one: f"{one.calls:g}"),
    (TableColumn(title="reason", role=Role.FREE), False, lambda one: one.reason or "-"),
)


def _duration(_context: click.Context, _option: click.Parameter, text: str) -> str:
    from policies.quantity import parse_duration  # noqa: PLC0415 - pydantic, which --help does not need

    try:
        if text:
            parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return text


@click.command(name="tap", short_help="Watch requests as they end: refused, slow, failed, or all.")
@click.argument("pool", default="", metavar="[POOL]", shell_complete=complete_names("pools"))
@connection_options
@click.option("--refused", is_flag=True, help="Only requests that were refused, by Switchgear or by an engine.")
@click.option("--slow", is_flag=True, help="Only slow answers.")
@click.option("--failed", is_flag=True, help="Only tries that failed, and requests that timed out.")
@click.option(
    "--slower-than",
    default="",
    callback=_duration,
    metavar="DURATION",
    help="Slow are answers that took longer; alone it implies --slow.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Exit after N lines.")
@output_option("table", "wide", "json")
def command(
    *, admin: str, pool: str, slower_than: str, count: int | None, output: OutputForm, **only: bool
) -> int:
    """Watch tries of requests as their access logs reach the server, until Ctrl-C.

    One line for each try: request ID, class, engine, number of the try, result, status, time since the first try,
    and why it was refused, slow or failed. -o json prints one object per line. Options combine: --refused --failed
    shows both.

    Slow is an answer beyond a latency objective of its route. Without such objectives it is one beyond the pool's
    p95 of the last minute.

    A busy proxy reports a sample of its calls: `calls` in -o json and wide is how many a line stands for. Refusals
    with a status other than 503 (too large, no route, not authorized) never reach the server's log. Prompts,
    answers and paths are not in access logs.

    Exit code: 0 after N lines, 2 when no server answers at the start or POOL is unknown, 130 on Ctrl-C. Later it
    waits for a lost server.
    """
    pools = fetch(admin, POLICIES).value.pools
    if pool and pool not in pools:
        hint = did_you_mean(pool, pools)
        raise click.UsageError(f"no pool {pool!r}{f'; {hint}' if hint else ''}")
    chosen = [name for name in TAP_FILTERS if only[name] or (name == "slow" and slower_than)]
    query = {"pool": pool, "only": ",".join(chosen), "slower_than": slower_than}
    path = f"{TAP.path}?{urlencode({name: value for name, value in query.items() if value})}"
    left = count
    printer = _Printer(output)
    for batch in _batches(admin, path):
        printer.remark(batch)
        printer.show(batch.tries[:left])
        if left is not None:
            left -= len(batch.tries)
            if left <= 0:
                return 0
    return 0


def _batches(admin: str, path: str) -> Iterator[TapBatch]:
    """Messages of the stream, opened again where it ends; errors of the first attempt are raised."""
    opened, trouble = False, ""
    while True:
        try:
            for _event, data in event_stream(admin, path, timeout_s=SILENT_S):
                batch = parse(TapBatch, data)
                if trouble:
                    click.echo("the server answers again; requests meanwhile are not shown", err=True)
                opened, trouble = True, ""
                yield batch
            problem = "the server closed the stream"
        except (AdminApiError, NoAnswerError, ShapeError) as error:
            if not opened:
                raise (
                    error if isinstance(error, click.ClickException) else NoAnswerError(f"{admin}: {error}")
                ) from error
            problem = error.format_message() if isinstance(error, click.ClickException) else str(error)
        if trouble != problem:
            trouble = problem
            click.echo(printable(trouble), err=True)
        time.sleep(AGAIN_S)


class _Printer:
    """Prints tries as lines; columns stay as wide as those above."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._columns = [one for one in _COLUMNS if output == "wide" or not one[1]]
        self._widths: list[int] = []
        self._headers = True
        self._ratio = 1.0

    def remark(self, batch: TapBatch) -> None:
        """Say on stderr what is not shown."""
        if batch.dropped:
            click.echo(f"{batch.dropped} tries not shown: more than this reader took", err=True)
        if batch.sampling_ratio != self._ratio:
            self._ratio = batch.sampling_ratio
            share = f"{self._ratio:.0%} of calls" if self._ratio < 1 else "all calls"
            click.echo(f"sampling: proxies report {share}", err=True)

    def show(self, tries: Sequence[TappedTry]) -> None:
        """Print these tries."""
        if self._output == "json":
            for one in tries:
                click.echo(json.dumps(_document(one), ensure_ascii=False))
        elif tries:
            titles = [column for column, _, _ in self._columns]
            rows = [[_cell(of(one)) for _, _, of in self._columns] for one in tries]
            width = None if self._output == "wide" else terminal_width()
            for line in table_lines(titles, rows, width=width, headers=self._headers, least=self._widths):
                click.echo(line)
            self._headers = False
        sys.stdout.flush()


def _document(one: TappedTry) -> Mapping[str, Any]:
    return {name: getattr(one, name) for name in TappedTry.__dataclass_fields__}


def _cell(text: str) -> Cell:
    return StyledText(printable(text), _STYLES.get(text, ""))
