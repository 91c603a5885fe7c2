"""``switchgear history``: list the policy versions of a server, or show what differs between two."""

import time
from typing import Any, Final

import click

from command_line.output_format import DATA, OutputForm, as_data, list_output_option, show_custom_columns
from command_line.table import Cell, Role, StyledText, TableColumn, show_table
from xds_server.admin_api.endpoints import HISTORY, VERSION
from xds_server.admin_api.version_types import HistoryStatus, VersionStatus, VersionTexts
from xds_server.cli.admin_client import AdminAnswer, AdminApiError, fetch
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.cli.version_number import VersionNumber
from xds_server.model.text import age_text

_UNKNOWN: Final = 404


@click.command(name="history")
@click.argument("number", type=VersionNumber(), required=False)
@click.option("--diff", "pair", nargs=2, type=VersionNumber(), metavar="N M", help="Show changes from N to M.")
@connection_options
@list_output_option()
def command(
    number: int | None, pair: tuple[int, int] | None, admin: str, output: OutputForm, *, no_headers: bool
) -> int:
    """List policy versions; with NUMBER, print the files of one.

    Each accepted set of policies becomes a version. `switchgear rollback N` applies one again.

    Exit code: 0, 1 unknown version or a difference found by --diff, 2 usage error or no server.
    """
    if number is not None and pair:
        raise click.UsageError("NUMBER and --diff exclude each other: remove one of them")
    try:
        if pair:
            from xds_server.cli.diff import diff_of_policies, policies_of_texts, print_diff  # noqa: PLC0415 - 0.5 s of CPU

            old, new = (policies_of_texts(fetch(admin, VERSION, one).value.texts) for one in pair)
            return print_diff(diff_of_policies(old, new, None, None), output, everything=True)
        if number is not None:
            _show(fetch(admin, VERSION, number), output)
            return 0
    except AdminApiError as refusal:
        if refusal.status != _UNKNOWN:
            raise
        click.echo(printable(refusal.message), err=True)
        return 1
    answer = fetch(admin, HISTORY)
    if output in DATA:
        click.echo(as_data(answer.document, output), nl=False)
    elif output == "name":
        click.echo("".join(f"version/{one.number}\n" for one in reversed(answer.value.versions)), nl=False)
    elif output == "custom-columns":
        versions: list[Any] = answer.document["versions"]
        show_custom_columns(output, versions[::-1], headers=not no_headers)
    else:
        _list(answer.value, wide=output == "wide", headers=not no_headers)
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


def _columns(*, wide: bool) -> list[TableColumn]:
    return [
        TableColumn(title="version"),
        TableColumn(title="at" if wide else "age"),
        TableColumn(title="source"),
        TableColumn(title="by"),
        TableColumn(title="digest"),
        TableColumn(title="files", role=Role.FIGURE),
        TableColumn(title="reason", role=Role.FREE),
    ]


def _row(one: VersionStatus, *, wide: bool) -> list[Cell]:
    return [
        StyledText(f"{one.number} *", "green") if one.serving else str(one.number),
        _at(one.at_unix_s) if wide else age_text(max(0.0, time.time() - one.at_unix_s)),
        f"rollback to {one.restores}" if one.restores else one.source,
        printable(one.by) or "-",
        one.digest if wide else one.digest[:12],
        str(one.files),
        printable(one.reason) or "-",
    ]


def _list(history: HistoryStatus, *, wide: bool, headers: bool) -> None:
    if history.versions:
        rows = [_row(one, wide=wide) for one in reversed(history.versions)]
        show_table(_columns(wide=wide), rows, headers=headers, whole=wide)
        if headers:
            click.echo("* current version")
    else:
        click.echo("no version yet: no policies accepted", err=True)
    if not history.kept:
        click.echo("history is in memory only; set --state-dir on the server to keep it", err=True)
    if history.failure:
        click.echo(f"cannot persist the latest version to disk: {printable(history.failure)}", err=True)
    for name in history.damaged:
        click.echo(f"unreadable version skipped: {printable(name)}", err=True)
