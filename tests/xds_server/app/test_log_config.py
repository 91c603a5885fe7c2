"""What peers call themselves begins no line of the log and moves no cursor."""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from xds_server.app import log_config

HOSTILE = ("a\n2026 [error] forged=1", "\x1b[31mred", "a\x9b2Jb", "a\u2028b", "a\rb", "a\u202eb", "\x07", "a\x00b")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.parametrize("said", HOSTILE, ids=ascii)
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_one_event_is_one_line_that_can_be_printed(
    said: str, log_format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log_config.configure("json" if log_format == "json" else "text", "info")
    structlog.get_logger().warning("xds.connected", node=said, names=[said], by={said: said})
    written = capfd.readouterr().err
    assert written.endswith("\n")
    assert written[:-1].isprintable()
    if log_format == "json":
        assert json.loads(written)["node"] == said


def test_a_full_disk_under_the_log_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stderr", full)
        log_config.configure("text", "info")
        structlog.get_logger().warning("xds.connected", node="gw-1")
        with pytest.raises(OSError, match="No space"):
            full.flush()
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_plain_words_stay_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    log_config.configure("text", "info")
    structlog.get_logger().warning("xds.connected", node="größe-東京")
    written = capfd.readouterr().err
    assert "node=größe-東京" in written


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_failure_tells_where_it_was_and_not_what_was_held_there(
    log_format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log_config.configure("json" if log_format == "json" else "text", "info")

    def judge(key: str) -> int:
        return int(key)

    try:
        judge("".join(("not", "-to-be-", "logged")))
    except ValueError as error:
        error.args = ("no number",)
        structlog.get_logger().exception("reconcile.failed", exc_info=error)
    written = capfd.readouterr().err
    assert "judge" in written
    assert "not-to-be-logged" not in written


def test_that_descriptors_ran_out_is_said_once_in_a_while(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio says so for each connection that it might have taken, every second: hundreds of lines."""
    log_config.configure("json", "info")
    now_s = log_config._SELDOM._next_s + 1_000.0
    monkeypatch.setattr(log_config.time, "monotonic", lambda: now_s)
    for _ in range(3):
        for _ in range(100):
            logging.getLogger("asyncio").error("socket.accept() out of system resource\nsocket: <fd=6>")
        logging.getLogger("asyncio").error("something else")
        now_s += log_config.SELDOM_S
    said = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert [one.partition("\n")[0] for one in said] == [
        "socket.accept() out of system resource",
        "something else",
    ] * 3
