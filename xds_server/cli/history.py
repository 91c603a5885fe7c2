"""``switchgear history``: the versions of the policies that a server has served, and what differs between two."""

import time

import click
from rich.table import Table
from rich.text import Text

from command_line.output_format import DATA, as_data, output_option
from xds_server.admin_api.endpoints import HISTORY, VERSION
from xds_server.admin_api.version_types import HistoryStatus, VersionTexts
from xds_server.cli.admin_client import AdminAnswer, AdminApiError, fetch
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.cli.output_format import console, show_table
from xds_server.cli.version_number import VersionNumber
from xds_server.model.text import age_text

_UNKNOWN = 404


@click.command(name="history")
@click.argument("number", type=VersionNumber(), required=False)
@click.option("--diff", "pair", nargs=2, type=VersionNumber(), metavar="N M", help="What M says other than N.")
@connection_options
@output_option("table", "wide", *DATA)
def command(number: int | None, pair: tuple[int, int] | None, admin: str, output: str) -> int:
    """List the versions of the policies; with NUMBER, print the files of one.

    Each set of policies that is served becomes a version. `switchgear rollback N` serves one again.

    Exit code: 0; 1 when there is no such version, and when --diff finds a difference; 2 when no server answers.
    """
    if number is not None and pair:
        raise click.UsageError("give NUMBER or --diff, not both")
    try:
        if pair:
            from xds_server.cli.diff import diff_of_policies, policies_of_texts, print_diff  # noqa: PLC0415 - two seconds of a CPU

            old, new = (policies_of_texts(fetch(admin, VERSION, one).value.texts) for one in pair)
            return print_diff(diff_of_policies(old, new, None, None), output, everything=True)
        if number is not None:
            _show(fetch(admin, VERSION, number), output)
            return 0
    except AdminApiError as refusal:
        if refusal.status != _UNKNOWN:
            raise
        click.echo(f"no: {printable(refusal.message)}", err=True)
        return 1
    answer = fetch(admin, HISTORY)
    if output in DATA:
        click.echo(as_data(answer.document, output), nl=False)
    else:
        _list(answer.value, wide=output == "wide")
    return 0


def _show(answer: AdminAnswer[VersionTexts], output: str) -> None:
    if output in DATA:
        click.echo(as_data(answer.document, output), nl=False)
        return
    for name, text in answer.value.texts.items():
        click.echo(printable(f"# {name}".replace("\n", " ")))
        click.echo(printable(text.rstrip("\n")))
        click.echo("---")


def _at(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def _list(history: HistoryStatus, *, wide: bool) -> None:
    out = console(whole_lines=wide)
    table = Table(
        "version", "at" if wide else "age", "from", "by", "digest", "files", "reason", box=None, pad_edge=False
    )
    for one in reversed(history.versions):
        number = f"{one.number}{' *' if one.serving else ''}"
        table.add_row(
            Text(number, style="green" if one.serving else ""),
            Text(_at(one.at_unix_s) if wide else age_text(max(0.0, time.time() - one.at_unix_s))),
            Text(f"rollback to {one.restores}" if one.restores else one.source),
            Text(printable(one.by)),
            Text(one.digest if wide else one.digest[:12]),
            Text(str(one.files)),
            Text(printable(one.reason) or "-"),
        )
    if history.versions:
        show_table(out, table)
        out.print("* is served")
    else:
        out.print("no version yet: nothing was accepted")
    if not history.kept:
        click.echo("kept in memory: they are gone when the server ends, unless it has --state-dir", err=True)
    if history.failure:
        click.echo(f"not on disk: {printable(history.failure)}", err=True)
    for name in history.damaged:
        click.echo(f"damaged, and skipped: {printable(name)}", err=True)
