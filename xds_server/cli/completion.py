"""``switchgear completion``: the script that completes commands, options and names in bash, zsh or fish.

The script asks ``switchgear`` itself for each completion. Names of engines, pools, zones and proxies come from the
running server, which is given little time; without one there is nothing to complete, and nothing is said.
"""

import http.client
import json
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

_CLASSES: Final[dict[str, type[ShellComplete]]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
VARIABLE: Final = "_SWITCHGEAR_COMPLETE"
TIMEOUT_S: Final = 0.5
"""A key press waits for it."""

_INSTALL: Final = {
    "bash": 'eval "$(switchgear completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(switchgear completion zsh)"  # in ~/.zshrc, after compinit',
    "fish": "switchgear completion fish > ~/.config/fish/completions/switchgear.fish",
}


@click.command(name="completion", short_help="Print the script that completes commands in a shell.")
@click.argument("shell", type=click.Choice(list(_CLASSES)))
def command(shell: str) -> int:
    """Print what makes SHELL complete commands, options, files, and names that the running server knows.

    \b
    bash:  eval "$(switchgear completion bash)"   in ~/.bashrc
    zsh:   eval "$(switchgear completion zsh)"    in ~/.zshrc, after compinit
    fish:  switchgear completion fish > ~/.config/fish/completions/switchgear.fish

    Names are asked of the server at --admin or SWITCHGEAR_ADMIN_URL. Exit code: 0.
    """
    # click's own ``source`` would run bash to see how old it is; whoever asks for the script has their shell.
    script = _CLASSES[shell](click.Group(), {}, "switchgear", VARIABLE)
    click.echo(f"# {_INSTALL[shell]}")
    click.echo(script.source_template % script.source_vars())
    return 0


def complete_names(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completes an argument by names of these kinds (engines, pools, zones, proxies)."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from xds_server.cli.connection_options import connection_settings  # noqa: PLC0415 - reads no server

        # Flags typed so far are in the click context.
        with context.scope(cleanup=False):
            try:
                admin = connection_settings().admin
            except click.ClickException:
                return []
            found = sorted({name for kind in kinds for name in _known(admin, kind)})
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]

    return complete


def _known(admin: str, kind: str) -> Sequence[str]:
    answer = _answer(admin, f"/v1/{kind}")
    rows = answer.get(kind) if isinstance(answer, dict) else None
    fields = {"engines": ("pool", "engine"), "pools": ("pool",), "zones": ("zone",), "proxies": ("node",)}[kind]
    found = []
    for one in rows if isinstance(rows, list) else ():
        # Whatever listens there: on a key that was pressed nothing is said of it.
        said = [one.get(field) for field in fields] if isinstance(one, dict) else [None]
        if all(isinstance(part, str) and part for part in said):
            # Bash takes a colon for the end of a word, so a zone stands alone.
            found.append("/".join(map(str, said)))
    return found


def _answer(admin: str, path: str) -> Any:
    """What the server says; None where it says nothing at once, for whatever reason."""
    from xds_server.cli.admin_client import admin_connection  # noqa: PLC0415 - completing a flag need not load a client

    try:
        if not urlsplit(admin if "//" in admin else f"http://{admin}").hostname:
            return None
        connection, headers = admin_connection(admin, timeout_s=TIMEOUT_S)
        try:
            connection.request("GET", path, None, headers)
            answer = connection.getresponse()
            return json.loads(answer.read()) if answer.status == http.client.OK else None
        finally:
            connection.close()
    except (OSError, ValueError, RecursionError, http.client.HTTPException, click.ClickException):
        return None
