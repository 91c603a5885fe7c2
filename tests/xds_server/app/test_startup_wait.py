"""A starting server names what it waits for, once for each kind of wait."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from engine.address import ListenAddress
from xds_server.app.startup_wait import report_startup_wait, waiting_for
from xds_server.reconcile.startup_gate import StartupWait

LISTEN = ListenAddress("127.0.0.1", 18000)


def starting(state: str = "accepted", *, reason: str = "", **wait: Any) -> Any:
    """A reconciler whose port is closed."""
    return SimpleNamespace(
        ready=asyncio.Event(),
        clock=lambda: 0.0,
        source_state=SimpleNamespace(state=state, reason=reason),
        serving=None if state in ("unread", "refused", "unreached") else object(),
        startup_wait=lambda: StartupWait(**wait),
    )


@pytest.mark.parametrize(
    ("reconciler", "text"),
    [
        (starting("unread"), "policies from policies/"),
        (starting("unreached", reason="connection refused"), "policies from policies/ (connection refused)"),
        (starting("refused"), "valid policies in policies/ (refused: see the errors above)"),
        (
            starting(engines=("chat/a", "chat/b"), left_s=8.0),
            "the first report of 2 engines (chat/a, chat/b), at most 8s",
        ),
        (starting(hosts=("gpu7",), left_s=3.0), "the addresses of 1 host (gpu7), at most 3s"),
        (starting(), ""),
    ],
)
def test_wait_is_named_with_its_limit(reconciler: Any, text: str) -> None:
    assert waiting_for(reconciler, ["policies/"])[1] == text


async def test_lines_end_when_the_server_is_ready() -> None:
    reconciler, lines = starting("unread"), []

    def print_line(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            reconciler.ready.set()
        reconciler.serving = object()
        reconciler.startup_wait = lambda: StartupWait(engines=("chat/a",), left_s=8.0)

    async with asyncio.timeout(30):
        await report_startup_wait(reconciler, ["policies/"], LISTEN, print_line)
    assert lines == [
        "waiting for policies from policies/; then serving xDS on 127.0.0.1:18000",
        "waiting for the first report of 1 engine (chat/a), at most 8s; then serving xDS on 127.0.0.1:18000",
    ]


async def test_ready_server_prints_nothing() -> None:
    reconciler = starting()
    reconciler.ready.set()
    lines: list[str] = []
    await report_startup_wait(reconciler, ["policies/"], LISTEN, lines.append)
    assert lines == []
