"""``switchgear eject | drain | restore``: operator orders for one engine, for a limited time and with a reason."""

import getpass
from collections.abc import Mapping
from typing import Any, Final

import click

from command_line.output_format import DATA, as_data, output_option
from policies.quantity import parse_duration
from xds_server.admin_api.endpoints import END_ORDER, ORDER
from xds_server.cli.admin_client import AdminApiError, fetch
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.model.text import age_text

_FLOOR_OR_STATE: Final = 409
_SENTENCES: Final = {
    "eject": "Ejected {} for {}",
    "drain": "Draining {} for {}",
    "restore": "Keeping {} in rotation for {}",
}
_by = click.option(
    "--by", default="", metavar="NAME", help="Who gives the order.  [default: the user of this shell]"
)
_form = output_option()


def _asked_to(action: str, help_text: str) -> click.Command:
    @click.command(name=action, help=help_text)
    @click.argument("engine", shell_complete=complete_names("engines"))
    @connection_options
    @click.option("--for", "length", required=True, metavar="DURATION", help="How long the order holds, e.g. 30m.")
    @click.option("--reason", required=True, help="Why; shown by `get orders` and `why`.")
    @click.option("--force", is_flag=True, help="Order it even below the capacity floor.")
    @_by
    @_form
    def command(*, engine: str, admin: str, length: str, reason: str, force: bool, by: str, output: str) -> int:
        return _give(admin, engine, action, length, reason, force=force, by=by, output=output)

    return command


eject = _asked_to(
    "eject",
    """Remove ENGINE from rotation for a limited time.

    It gets no new requests, and those in flight may be cut. `switchgear restore ENGINE` ends the order early. A
    new order for the same engine replaces it. Orders survive a restart of a server with --state-dir.

    Exit code: 0 when ordered, 1 when refused by the capacity floor (see --force), 2 on a usage error, an unknown
    engine, or when no server answers.
    """,
)
drain = _asked_to(
    "drain",
    """Stop sending new requests to ENGINE for a limited time; those in flight may finish.

    `switchgear restore ENGINE` ends the order early. Before you stop an engine, run `switchgear-agent drain` on
    its host: that also waits until no proxy uses the engine and nothing is in flight.

    Exit code: 0 when ordered, 1 when refused by the capacity floor (see --force), 2 on a usage error, an unknown
    engine, or when no server answers.
    """,
)


@click.command(name="restore")
@click.argument("engine", shell_complete=complete_names("engines"))
@connection_options
@click.option("--for", "length", default="", metavar="DURATION", help="Keep ENGINE in rotation for this long.")
@click.option("--reason", default="", help="Why; required with --for.")
@_by
@_form
def restore(*, engine: str, admin: str, length: str, reason: str, by: str, output: str) -> int:
    """End the operator order for ENGINE; its health decides again.

    With --for, keep it in rotation for that time, whatever its error rate or latency. A dead, hung or draining
    engine stays out. `switchgear restore ENGINE` alone ends that order too.

    Exit code: 0 when done, 1 when there is no order to end, 2 on a usage error, an unknown engine, or when no
    server answers.
    """
    if length:
        return _give(admin, engine, "restore", length, reason, force=False, by=by, output=output)
    if reason:
        raise click.UsageError("--reason needs --for: ending an order takes no reason")
    try:
        fetch(admin, END_ORDER, query=[("name", engine), ("by", by or _user())])
    except AdminApiError as refusal:
        return _refused(refusal, output, "; to keep it in rotation, use --for and --reason")
    _tell(output, "ended", f"Ended the order for {engine}. See `switchgear why {engine}` for its state.")
    return 0


def _give(
    admin: str, engine: str, action: str, length: str, reason: str, *, force: bool, by: str, output: str
) -> int:
    try:
        for_s = parse_duration(length)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--for") from error
    if not reason.strip():
        raise click.UsageError("--reason is empty: say why, for those who find the order")
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
    sentence = _SENTENCES[action].format(f"{order.pool}/{order.engine}", age_text(order.left_s))
    reason = order.reason.replace("\n", " ")
    if order.note:
        click.echo(f"note: {printable(order.note)}", err=True)
    _tell(output, "ordered", f"{sentence}: {reason}", order=answer.document)
    return 0


def _refused(refusal: AdminApiError, output: str, hint: str = "") -> int:
    if refusal.status != _FLOOR_OR_STATE:
        raise refusal
    reason = f"{refusal.message}{hint}"
    click.echo(f"refused: {printable(reason)}", err=True)
    _write(output, "refused", reason=reason)
    return 1


def _tell(output: str, outcome: str, sentence: str, *, order: Mapping[str, Any] | None = None) -> None:
    """A sentence, or the outcome as data."""
    if output not in DATA:
        click.echo(printable(sentence))
    _write(output, outcome, order=order)


def _write(output: str, outcome: str, *, reason: str = "", order: Mapping[str, Any] | None = None) -> None:
    """The outcome, if a machine reads it; the order as in ``get orders``."""
    if output in DATA:
        click.echo(as_data({"outcome": outcome, "reason": reason, "order": order}, output), nl=False)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # containers have user ids without a name
        return ""
