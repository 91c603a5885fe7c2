"""``switchgear completion``, and completion of names that the running server knows.

Without a server there is nothing to complete, and no message.
"""

import http.client
import json
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from command_line.completion_script import completion_command

TIMEOUT_S: Final = 0.5
"""A key press waits for it."""

command = completion_command(
    "switchgear",
    "Names of engines, pools, zones and proxies come from the server; see `switchgear options` for which one. "
    "Contexts come from the context file.\n\nExit code: 0.",
)


def complete_names(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Complete an argument by names of these kinds (engines, pools, zones, proxies, objectives)."""

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
    fields = {
        "engines": ("pool", "engine"),
        "pools": ("pool",),
        "zones": ("zone",),
        "proxies": ("node",),
        "objectives": ("route", "objective"),
    }[kind]
    found = []
    for one in rows if isinstance(rows, list) else ():
        # Another server may listen there: a key press shows no error.
        parts = [one.get(field) for field in fields] if isinstance(one, dict) else [None]
        if kind == "objectives" and isinstance(one, dict) and one.get("pool"):
            parts = ["pool", one["pool"], one.get("objective")]
        if all(isinstance(part, str) and part for part in parts):
            # Bash ends a word at a colon, so a zone stands alone.
            found.append("/".join(map(str, parts)))
    return found


def _answer(admin: str, path: str) -> Any:
    """The answer of the server; None where it does not answer at once."""
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
