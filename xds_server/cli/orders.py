"""``switchgear eject | drain | restore``: what an operator orders for one engine, for a time and with a reason."""

import getpass
from collections.abc import Mapping
from typing import Any

import click

from command_line.output_format import DATA, as_data, output_option
from policies.quantity import parse_duration
from xds_server.admin_api.endpoints import END_ORDER, ORDER
from xds_server.cli.admin_client import AdminApiError, fetch
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.model.text import age_text

_FLOOR_OR_STATE = 409
_by = click.option("--by", default="", metavar="NAME", help="Who orders it; the user of this shell when absent.")
_form = output_option()


def _asked_to(action: str, help_text: str) -> click.Command:
    @click.command(name=action, help=help_text)
    @click.argument("engine", shell_complete=complete_names("engines"))
    @connection_options
    @click.option("--for", "length", required=True, metavar="DURATION", help="How long it holds, such as 30m.")
    @click.option("--reason", required=True, help="Why; shown to whoever asks.")
    @click.option("--force", is_flag=True, help="Also where too few engines would be left (the capacity floor).")
    @_by
    @_form
    def command(*, engine: str, admin: str, length: str, reason: str, force: bool, by: str, output: str) -> int:
        return _give(admin, engine, action, length, reason, force=force, by=by, output=output)

    return command


eject = _asked_to(
    "eject",
    """Take ENGINE out at once, for a time.

    It gets nothing new, and what it holds may be ended. `switchgear restore ENGINE` ends the order before its
    time. Another order for the same engine takes its place. Orders survive a restart of a server with --state-dir.

    Exit code: 0 when it is ordered, 1 when that would cross the capacity floor (then --force), 2 when the request
    is wrong or no server answers.
    """,
)
drain = _asked_to(
    "drain",
    """Give ENGINE nothing new, for a time; what it has may finish.

    `switchgear restore ENGINE` ends the order before its time. To drain an engine that is to be stopped, ask its
    agent (`switchgear-agent drain`): that waits until no proxy sends it anything and nothing is in flight.

    Exit code: 0 when it is ordered, 1 when that would cross the capacity floor (then --force), 2 when the request
    is wrong or no server answers.
    """,
)


@click.command(name="restore")
@click.argument("engine", shell_complete=complete_names("engines"))
@connection_options
@click.option("--for", "length", default="", metavar="DURATION", help="Order it to be in for so long; see above.")
@click.option("--reason", default="", help="Why; needed with --for.")
@_by
@_form
def restore(*, engine: str, admin: str, length: str, reason: str, by: str, output: str) -> int:
    """End the order for ENGINE: from now on it is judged like any other.

    With --for it does more: the engine is ordered in for that time, whatever its error rate or its slowness say. A
    dead, hung or draining engine stays out all the same. `switchgear restore ENGINE` alone ends that order too.

    Exit code: 0 when done, 1 when there is no order to end, 2 when the request is wrong or no server answers.
    """
    if length:
        return _give(admin, engine, "restore", length, reason, force=False, by=by, output=output)
    if reason:
        raise click.UsageError("--reason goes with --for; without it an order is ended, which needs none")
    try:
        fetch(admin, END_ORDER, query=[("name", engine), ("by", by or _user())])
    except AdminApiError as refusal:
        return _refused(refusal, output, "; to keep it in against soft evidence, say --for and --reason")
    told = f"the order for {engine} is ended; `switchgear why {engine}` says what is decided now"
    click.echo(told, err=output in DATA)
    _tell(output, "ended")
    return 0


def _give(
    admin: str, engine: str, action: str, length: str, reason: str, *, force: bool, by: str, output: str
) -> int:
    try:
        for_s = parse_duration(length)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--for") from error
    if not reason.strip():
        raise click.UsageError("say why with --reason: whoever finds the order will want to know")
    body: dict[str, Any] = {
        "engine": engine,
        "action": action,
        "for_s": for_s,
        "reason": reason,
        "by": by or _user(),
        "force": force,
    }
    try:
        answer = fetch(admin, ORDER, body=body)
    except AdminApiError as refusal:
        return _refused(refusal, output)
    order = answer.value
    reason = printable(order.reason.replace("\n", " "))
    told = f"{order.action} {order.pool}/{order.engine} for {age_text(order.left_s)}: {reason}"
    click.echo(told, err=output in DATA)
    if order.note:
        click.echo(f"note: {printable(order.note)}", err=True)
    _tell(output, "ordered", order=answer.document)
    return 0


def _refused(refusal: AdminApiError, output: str, hint: str = "") -> int:
    if refusal.status != _FLOOR_OR_STATE:
        raise refusal
    click.echo(f"no: {printable(refusal.message)}{hint}", err=True)
    _tell(output, "refused", reason=f"{refusal.message}{hint}")
    return 1


def _tell(output: str, outcome: str, *, reason: str = "", order: Mapping[str, Any] | None = None) -> None:
    """What became of it, where a machine reads the answer; the order as ``get orders`` has it."""
    if output in DATA:
        click.echo(as_data({"outcome": outcome, "reason": reason, "order": order}, output), nl=False)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as containers have it
        return ""
