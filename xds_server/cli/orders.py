"""``switchgear eject | drain | degrade | restore``: time-limited operator orders for an engine or pool."""

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
from xds_server.model.order import TOP_LEVEL
from xds_server.model.text import age_text

_FLOOR_OR_STATE: Final = 409
_SENTENCES: Final = {
    "eject": "Ejected {} for {}",
    "drain": "Draining {} for {}",
    "restore": "Keeping {} in rotation for {}",
    "degrade": "Holding {} at degradation level {} for {}",
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
        order = {"engine": engine, "action": action, "reason": reason, "by": by, "force": force}
        return _give(admin, order, length, output)

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


@click.command(name="degrade")
@click.argument("pool", shell_complete=complete_names("pools"))
@connection_options
@click.option("--level", required=True, type=click.IntRange(0, TOP_LEVEL), help="Degradation level; 0 is none.")
@click.option("--for", "length", required=True, metavar="DURATION", help="How long the order holds, e.g. 15m.")
@click.option("--reason", required=True, help="Why; shown by `get orders` and `why`.")
@_by
@_form
def degrade(*, pool: str, admin: str, level: int, length: str, reason: str, by: str, output: str) -> int:
    """Hold POOL at a degradation level for a limited time, whatever its pressure.

    Levels: 1 no hedging and minimum retries; 2 overflow goes to the fallback; 3 batch and long answers are
    refused; 4 every request gets the maintenance answer. The ordered level acts even if the policy turned it
    off; lower levels act if they are on. `switchgear restore POOL` ends the order early; the level then falls
    to what the pressure asks for.

    Exit code: 0 when ordered, 2 on a usage error, an unknown pool, or when no server answers.
    """
    named = pool if pool.startswith("pool:") else f"pool:{pool}"
    order = {"engine": named, "action": "degrade", "reason": reason, "by": by, "level": level}
    return _give(admin, order, length, output)


@click.command(name="restore")
@click.argument("engine", metavar="ENGINE|POOL", shell_complete=complete_names("engines", "pools"))
@connection_options
@click.option("--for", "length", default="", metavar="DURATION", help="Keep ENGINE in rotation for this long.")
@click.option("--reason", default="", help="Why; required with --for.")
@_by
@_form
def restore(*, engine: str, admin: str, length: str, reason: str, by: str, output: str) -> int:
    """End the operator order for ENGINE or POOL; health and pressure decide again.

    With --for, keep ENGINE in rotation for that time, whatever its error rate or latency. A dead, hung or draining
    engine stays out. `switchgear restore ENGINE` alone ends that order too.

    Exit code: 0 when done, 1 when there is no order to end, 2 on a usage error, an unknown engine, or when no
    server answers.
    """
    if length:
        order = {"engine": engine, "action": "restore", "reason": reason, "by": by}
        return _give(admin, order, length, output)
    if reason:
        raise click.UsageError("--reason needs --for: ending an order takes no reason")
    try:
        fetch(admin, END_ORDER, query=[("name", engine), ("by", by or _user())])
    except AdminApiError as refusal:
        return _refused(refusal, output, "; to keep it in rotation, use --for and --reason")
    _tell(output, "ended", f"Ended the order for {engine}. See `switchgear why {engine}` for its state.")
    return 0


def _give(admin: str, order: Mapping[str, Any], length: str, output: str) -> int:
    """Give an order, in the fields of ``OrderRequest``; ``length`` is its time."""
    try:
        for_s = parse_duration(length)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--for") from error
    if not order["reason"].strip():
        raise click.UsageError("--reason is empty: say why, for those who find the order")
    body = {**order, "for_s": for_s, "by": order["by"] or _user()}
    try:
        answer = fetch(admin, ORDER, body=body)
    except AdminApiError as refusal:
        return _refused(refusal, output)
    given = answer.value
    subject = f"{given.pool}/{given.engine}" if given.engine else given.pool
    level = () if given.level is None else (given.level,)
    sentence = _SENTENCES[given.action].format(subject, *level, age_text(given.left_s))
    reason = given.reason.replace("\n", " ")
    if given.note:
        click.echo(f"note: {printable(given.note)}", err=True)
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
