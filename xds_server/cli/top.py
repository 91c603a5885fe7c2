"""``switchgear top``: the dashboard in a terminal, live over ``/v1/live``; on a pipe one snapshot."""

import contextlib
import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from typing import Any, Final

import click
from rich.live import Live
from rich.text import Text

from command_line.output_format import DATA, as_data, output_option
from policies.findings import did_you_mean
from xds_server.admin_api.endpoints import LIVE, POLICIES, WHY
from xds_server.cli.admin_client import event_stream, fetch
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import connection_options
from xds_server.cli.output_format import console, redrawn
from xds_server.cli.top_screen import TopSelection, render_screen
from xds_server.cli.why import as_text
from xds_server.diagnosis.live_state import SORTS, LiveState

SILENT_S: Final = 6.0
"""Frames come each second; after this silence the server counts as gone."""

AGAIN_S: Final = 1.0
_NOT_OURS: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of messages that are not those of a Switchgear."""

_KEYS: Final = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b": "esc", "\r": "enter"}


@click.command(name="top", short_help="Watch pools, engines and proxies in the terminal.")
@connection_options
@click.option("--pool", default="", metavar="POOL", shell_complete=complete_names("pools"), help="Only this pool.")
@click.option(
    "--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="Sort order of the engines."
)
@output_option("text", *DATA)
def command(admin: str, pool: str, sort: str, output: str) -> int:
    """Watch a running server: pools, proxies out of sync, engines (worst first) and the last events.

    Keys: q quits, p selects the next pool, s the next sort order, arrows select an engine, enter explains it, esc
    goes back. Changes nothing. On a pipe it prints one snapshot; -o json, yaml and jsonpath also print one: the
    first message of /v1/live.

    Exit code: 0, or 2 when no server answers at the start, or it has no such pool. Later it waits for a lost
    server.
    """
    pools = fetch(admin, POLICIES).value.pools
    if pool and pool not in pools:
        hint = did_you_mean(pool, pools)
        raise click.UsageError(f"no pool {pool!r}{f'; {hint}' if hint else ''}")
    choice = TopSelection(pool=pool, sort=sort)
    feed = _Feed(admin, click.get_current_context())
    if output in DATA:
        click.echo(as_data(feed.snapshot(pool), output), nl=False)
        return 0
    if not (redrawn() and sys.stdin.isatty()):
        board = feed.first()
        console(whole_lines=True).print(render_screen(board, choice, 0, 0), soft_wrap=True)
        return 0
    feed.start()
    _watch(feed, choice, admin)
    return 0


class _Feed(threading.Thread):
    """Follows the server's stream and reconnects. ``woken`` is readable after each change."""

    def __init__(self, admin: str, context: click.Context) -> None:
        super().__init__(name="live", daemon=True)
        self._admin = admin
        self._context = context
        self.lock = threading.Lock()
        self.board = LiveState()
        self.trouble = "connecting ..."
        self.woken, self._wake = os.pipe()

    def run(self) -> None:
        """Run until the process ends."""
        pause = threading.Event()
        # click keeps the connection options for the thread that runs the command.
        with self._context.scope(cleanup=False):
            while True:
                try:
                    for event, data in self._messages():
                        with self.lock:
                            self.board.take(event, data)
                            self.trouble = ""
                        self._tell()
                    self._say("the server closed the stream")
                except click.ClickException as error:
                    self._say(error.format_message())
                except _NOT_OURS as error:
                    self._say(f"{self._admin} does not answer as Switchgear does: {error!r}")
                pause.wait(AGAIN_S)

    def first(self) -> LiveState:
        """The state now; ``click.ClickException`` if unavailable."""
        self._first()
        return self.board

    def snapshot(self, pool: str) -> dict[str, object]:
        """The state now as the server sent it; of one pool if ``pool`` names it."""
        frame = self._first()
        if not pool:
            return frame
        tables: Any = frame["tables"]
        events: Any = frame["events"]
        of_pool = {
            name: {key: row for key, row in rows.items() if (key if name == "pools" else row.get("pool")) == pool}
            for name, rows in tables.items()
            if name in ("pools", "zones", "engines")
        }
        return {
            **frame,
            "tables": {**tables, **of_pool},
            "events": [one for one in events if one.get("pool") == pool],
        }

    def _first(self) -> dict[str, object]:
        try:
            event, data = next(self._messages())
            self.board.take(event, data)
        except StopIteration as error:
            raise click.ClickException(f"{self._admin}{LIVE.path} sends nothing: is it the admin port?") from error
        except _NOT_OURS as error:
            raise click.ClickException(
                f"{self._admin}{LIVE.path} does not answer as Switchgear does: {error!r}"
            ) from error
        return data

    def _messages(self) -> Iterator[tuple[str, dict[str, object]]]:
        return event_stream(self._admin, LIVE.path, timeout_s=SILENT_S)

    def _say(self, trouble: str) -> None:
        with self.lock:
            self.trouble = trouble
        self._tell()

    def _tell(self) -> None:
        os.write(self._wake, b".")


def _watch(feed: _Feed, choice: TopSelection, admin: str) -> None:
    out = console()
    with _keys_at_once(), Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(_drawn(feed, choice, out.size.width, out.size.height), refresh=True)
            # At least each second: the terminal may have been resized.
            ready, _, _ = select.select([sys.stdin.fileno(), feed.woken], [], [], 1.0)
            if feed.woken in ready:
                os.read(feed.woken, 4096)
            if sys.stdin.fileno() not in ready:
                continue
            typed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
            if not typed:
                return
            for key in _keys(typed):
                if key == "q":
                    return
                with feed.lock:
                    _pressed(key, feed.board, choice)
                if key == "enter" and choice.explanation is None and choice.selected:
                    choice.explanation = _story(admin, choice.selected)
                elif key in ("enter", "esc"):
                    choice.explanation = None


def _drawn(feed: _Feed, choice: TopSelection, width: int, height: int) -> Text:
    with feed.lock:
        return render_screen(feed.board, choice, width, height, feed.trouble)


def _keys(typed: str) -> Iterator[str]:
    """The keys pressed; terminals send several characters for one key."""
    while typed:
        for text, key in _KEYS.items():
            if typed.startswith(text):
                yield key
                typed = typed[len(text) :]
                break
        else:
            yield "enter" if typed[0] == "\n" else typed[0]
            typed = typed[1:]


def _pressed(key: str, board: LiveState, choice: TopSelection) -> None:
    """Apply a key that changes the selection."""
    if key == "p":
        names = ["", *(name for name, _ in board.pools())]
        here = names.index(choice.pool) if choice.pool in names else 0
        choice.pool, choice.selected = names[(here + 1) % len(names)], ""
    elif key == "s":
        choice.sort = SORTS[(SORTS.index(choice.sort) + 1) % len(SORTS)]
    elif key in ("up", "down"):
        names = [name for name, _ in board.engines(choice.pool, choice.sort)]
        if names and choice.selected not in names:
            choice.selected = names[0]
        elif names:
            step = 1 if key == "down" else -1
            choice.selected = names[max(0, min(len(names) - 1, names.index(choice.selected) + step))]


def _story(admin: str, engine: str) -> str:
    try:
        return as_text(fetch(admin, WHY, query=[("name", engine)]).value)
    except click.ClickException as error:
        return error.format_message()


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """The terminal in cbreak mode (each key at once), restored at the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
