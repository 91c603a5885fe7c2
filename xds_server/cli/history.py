"""``switchgear history``: the versions of the policies that a server has served, and what differs between two."""

import time
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from xds_server.cli.asking import RefusedError, admin_option, ask
from xds_server.cli.complaints import printable
from xds_server.cli.diff import compared, of_texts, told
from xds_server.cli.forms import DATA, as_data, console, output_option
from xds_server.cli.version_number import VersionNumber
from xds_server.diagnosis.check import age

_UNKNOWN = 404


@click.command(name="history")
@click.argument("number", type=VersionNumber(), required=False)
@click.option("--diff", "pair", nargs=2, type=VersionNumber(), metavar="N M", help="What M says other than N.")
@admin_option
@output_option("text", default="text")
def command(number: int | None, pair: tuple[int, int] | None, admin: str, output: str) -> int:
    """List the versions of the policies; with NUMBER, print the files of one.

    Each set of policies that is served becomes a version. `switchgear rollback N` serves one again.

    Exit code: 0; 1 when there is no such version, and when --diff finds a difference; 2 when no server answers.
    """
    if number is not None and pair:
        raise click.UsageError("give NUMBER or --diff, not both")
    try:
        if pair:
            old, new = (of_texts(ask(admin, f"/v1/history/{one}")["texts"]) for one in pair)
            return told(compared(old, new, None, None), output, everything=True)
        if number is not None:
            _show(ask(admin, f"/v1/history/{number}"), output)
            return 0
    except RefusedError as refusal:
        if refusal.status != _UNKNOWN:
            raise
        click.echo(f"no: {refusal.message}", err=True)
        return 1
    answer = ask(admin, "/v1/history")
    if output in DATA:
        click.echo(as_data(answer, output), nl=False)
    else:
        _list(answer)
    return 0


def _show(answer: dict[str, Any], output: str) -> None:
    if output in DATA:
        click.echo(as_data(answer, output), nl=False)
        return
    for name, text in answer["texts"].items():
        click.echo(printable(f"# {name}".replace("\n", " ")))
        click.echo(printable(text.rstrip("\n")))
        click.echo("---")


def _list(answer: dict[str, Any]) -> None:
    out = console()
    table = Table("version", "age", "from", "by", "digest", "files", "reason", box=None, pad_edge=False)
    for one in reversed(answer["versions"]):
        number = f"{one['number']}{' *' if one['serving'] else ''}"
        table.add_row(
            Text(number, style="green" if one["serving"] else ""),
            Text(age(max(0.0, time.time() - one["at_unix_s"]))),
            Text(f"rollback to {one['restores']}" if one["restores"] else one["source"]),
            Text(printable(one["by"])),
            Text(one["digest"][:12]),
            Text(str(one["files"])),
            Text(printable(one["reason"]) or "-"),
        )
    if answer["versions"]:
        out.print(table)
        out.print("* is served")
    else:
        out.print("no version yet: nothing was accepted")
    if not answer["kept"]:
        click.echo("kept in memory: they are gone when the server ends, unless it has --state-dir", err=True)
    if answer["failure"]:
        click.echo(f"not on disk: {printable(answer['failure'])}", err=True)
    for name in answer["damaged"]:
        click.echo(f"damaged, and skipped: {printable(name)}", err=True)
