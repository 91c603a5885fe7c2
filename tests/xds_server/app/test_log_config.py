"""Peer-supplied names cannot break log lines or move the cursor."""

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


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_log_event_is_one_printable_line(hostile: str, log_format: str, capfd: pytest.CaptureFixture[str]) -> None:
    log_config.configure("json" if log_format == "json" else "text", "info")
    structlog.get_logger().warning("xds.connected", node=hostile, names=[hostile], by={hostile: hostile})
    written = capfd.readouterr().err
    assert written.endswith("\n")
    assert written[:-1].isprintable()
    if log_format == "json":
        assert json.loads(written)["node"] == hostile


def test_full_log_disk_does_not_stop_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stderr", full)
        log_config.configure("text", "info")
        structlog.get_logger().warning("xds.connected", node="gw-1")
        with pytest.raises(OSError, match="No space"):
            full.flush()
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_plain_log_text_is_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    log_config.configure("text", "info")
    structlog.get_logger().warning("xds.connected", node="größe-東京")
    written = capfd.readouterr().err
    assert "node=größe-東京" in written


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_logged_traceback_has_no_local_variables(log_format: str, capfd: pytest.CaptureFixture[str]) -> None:
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


def test_descriptor_exhaustion_log_is_rate_limited(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio logs one line per refused connection, hundreds per second."""
    log_config.configure("json", "info")
    now_s = log_config._SELDOM._next_s + 1_000.0
    monkeypatch.setattr(log_config.time, "monotonic", lambda: now_s)
    for _ in range(3):
        for _ in range(100):
            logging.getLogger("asyncio").error("socket.accept() out of system resource\nsocket: <fd=6>")
        logging.getLogger("asyncio").error("something else")
        now_s += log_config.SELDOM_S
    hostile = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert [one.partition("\n")[0] for one in hostile] == [
        "socket.accept() out of system resource",
        "something else",
    ] * 3
