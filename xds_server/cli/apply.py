"""``switchgear apply``: other policies for a running server, which judges them as it does its files."""

import getpass
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from policies.findings import PolicyErrors, Problem
from policies.load import load
from policies.reading import decoded, read, search
from xds_server.cli.asking import RefusedError, admin_option, ask
from xds_server.cli.complaints import as_text, of_errors, printable
from xds_server.cli.diff import compared, running, told
from xds_server.history.version import MAX_TEXT_BYTES

by_option = click.option(
    "--by", default="", metavar="NAME", help="Who does it; the user of this shell when absent."
)
reason_option = click.option("--reason", default="", help="Why; kept with the version.")
_STATES: Final = {
    "held": "held back",
    "failed": "not served",
    "pending": "not served yet",
}


@click.command(name="apply")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--dry-run", is_flag=True, help="Show what it would change, and have the server judge it; change nothing."
)
@admin_option
@by_option
@reason_option
def command(paths: tuple[Path, ...], dry_run: bool, admin: str, by: str, reason: str) -> int:
    """Have the policies in the files and folders PATHS served, in the place of all that is served now.

    The server judges them like its own files, and they become a version (`switchgear history`). They stand until
    the policy files of the server change, also over a restart with --state-dir: correct the files, too. A server
    that reads policies from Kubernetes refuses: change them there.

    Exit code: 0 when they are served (with --dry-run: could be), 1 when they are not, 2 when the request is wrong
    or no server answers.
    """
    texts = _texts(paths)
    if texts is None:
        return 1
    if dry_run:
        old, views, arrivals = running(admin)
        told(compared(old, load(paths), views, arrivals), "text", everything=False)
    body = {"texts": texts, "by": by or user(), "reason": reason, "dry_run": dry_run}
    try:
        return outcome(ask(admin, "/v1/apply", method="POST", body=body))
    except RefusedError as refusal:
        click.echo(f"no: {printable(refusal.message)}", err=True)
        return 1


def _texts(paths: tuple[Path, ...]) -> Mapping[str, str] | None:
    """The files by name; None when they have problems, which are said; ``click.UsageError`` for too many."""
    try:
        load(paths)
    except PolicyErrors as errors:
        click.echo(as_text(of_errors(errors)), err=True)
        return None
    texts = {}
    for file in search(paths).files:
        content = read(file)
        text = content if isinstance(content, Problem) else decoded(content)
        if isinstance(text, Problem):
            raise click.ClickException(f"{file} changed while it was read: {text.message}")
        texts[str(file)] = text
    if sum(map(len, texts.values())) > MAX_TEXT_BYTES:
        raise click.UsageError(f"a server takes at most {MAX_TEXT_BYTES // 1024**2} MiB of policies")
    return texts


def outcome(answer: Mapping[str, Any]) -> int:
    """Say what became of a change; 0 when it is done."""
    state, reason = answer["state"], printable(answer["reason"].replace("\n", " "))
    digest = answer["digest"][:12]
    if state == "served":
        click.echo(f"version {answer['version']} ({digest}) is served; it stands until the policy files change")
        return 0
    if state == "judged":
        click.echo(f"the server would take it ({digest}); nothing was changed")
        return 0
    click.echo(f"{_STATES.get(state, state)}: {reason}", err=True)
    if state == "held":
        click.echo("to serve it all the same: POST /v1/allow-shrink on the admin port", err=True)
    return 1


def user() -> str:
    """The user of this shell; empty where nobody has a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
