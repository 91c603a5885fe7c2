"""States what a starting server waits for while its xDS port is closed."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from engine.address import ListenAddress
from policies.quantity import format_duration
from xds_server.model.text import count_text
from xds_server.reconcile.reconciler import Reconciler

LOOK_EACH_S: Final = 0.25
REPEAT_EACH_S: Final = 2.0
"""Shortest time between two lines about the same kind of wait."""

_NAMED: Final = 5


async def report_startup_wait(
    reconciler: Reconciler, sources: Sequence[str], listen: ListenAddress, print_line: Callable[[str], None]
) -> None:
    """Print a line for each wait until the server is ready; none if it is ready at once."""
    kind, text, printed_s = "", "", 0.0
    while not await _ready(reconciler):
        now_s = reconciler.clock()
        now_kind, now_text = waiting_for(reconciler, sources)
        if now_text and (now_kind != kind or (now_text != text and now_s - printed_s >= REPEAT_EACH_S)):
            kind, text, printed_s = now_kind, now_text, now_s
            print_line(f"waiting for {text}; then serving xDS{f' on {listen}' if listen.port else ''}")


async def _ready(reconciler: Reconciler) -> bool:
    try:
        await asyncio.wait_for(reconciler.ready.wait(), LOOK_EACH_S)
    except TimeoutError:
        return False
    return True


def waiting_for(reconciler: Reconciler, sources: Sequence[str]) -> tuple[str, str]:
    """The kind of wait and its description, empty while the first snapshot is built."""
    state, places = reconciler.source_state, ", ".join(sources)
    if reconciler.serving is None:
        if state.state == "refused":
            return "refused", f"valid policies in {places} (refused: see the errors above)"
        reason = f" ({state.reason})" if state.reason else ""
        return state.state, f"policies from {places}{reason}"
    wait = reconciler.startup_wait()
    at_most = f"at most {format_duration(max(1.0, round(wait.left_s)))}"
    if wait.hosts:
        return (
            "hosts",
            f"the addresses of {count_text(len(wait.hosts), 'host')} ({_listed(wait.hosts)}), {at_most}",
        )
    if wait.engines:
        engines = f"{count_text(len(wait.engines), 'engine')} ({_listed(wait.engines)})"
        return "engines", f"the first report of {engines}, {at_most}"
    return "snapshot", ""


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest
