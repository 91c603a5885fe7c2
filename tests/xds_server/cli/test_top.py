"""``switchgear top`` on a real terminal and on a pipe, against a server that goes and comes back."""

import fcntl
import http.server
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.xds_server.admin_api import rows
from xds_server.cli import main
from xds_server.cli.top_screen import TopSelection, render_screen
from xds_server.diagnosis.live_state import LiveState

LIMIT_S = 60.0
SWITCHGEAR = str(Path(sys.executable).with_name("switchgear"))


def engine(health: str = "HEALTHY", reason: str = "", **said: Any) -> dict[str, Any]:
    return {
        "pool": "chat", "health": health, "verdict": "ready", "floor": False, "order": None, "shunned": 0,
        "trafficPercent": 100.0, "slots": 10.0, "inFlight": 5, "reason": reason, "errorPercent": 1.0,
    } | said  # fmt: skip


def pool(**said: Any) -> dict[str, Any]:
    return {
        "healthy": 1, "engines": 2, "level": 2, "levelReason": "more is asked than served", "donePerS": 12.5,
        "shedPerS": 3.5, "ceiling": 384, "slots": 20.0, "inFlight": 10,
    } | said  # fmt: skip


def frame(**tables: Any) -> dict[str, Any]:
    server = {"ready": True, "reason": "serving", "policies": "accepted", "digest": "0123456789ab"}
    event = {
        "number": 1, "at": 90.0, "kind": "health", "subject": "chat/r2", "pool": "chat", "before": "HEALTHY",
        "after": "UNHEALTHY", "evidence": "hung: no token for 5 s", "alarm": True, "times": 1,
    }  # fmt: skip
    return {
        "at": 100.0,
        "tables": {
            "server": {"server": server},
            "pools": {"chat": pool()},
            "engines": {"chat/r1": engine(), "chat/r2": engine("UNHEALTHY", "hung: no token for 5 s")},
            "proxies": {"n1": {"types": {"RDS": "NACK"}, "refused": ["RDS port-1: bad regex"]}},
            "conditions": {
                "SG204 proxy n1 0": {
                    "code": "SG204", "severity": "critical", "rank": 0, "subject": "proxy n1", "since": 95.0,
                    "sentence": "RDS refused: port-1: bad regex",
                },
            },
            **tables,
        },
        "events": [event],
    }  # fmt: skip


class Server:
    """An admin port with a stream that ends after each frame."""

    def __init__(self, port: int = 0) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                if self.path == "/v1/live":
                    self.wfile.write(f"event: frame\ndata: {json.dumps(frame())}\n\n".encode())
                    self.wfile.flush()
                    released.wait(LIMIT_S)
                elif self.path.startswith("/v1/why"):
                    story = rows.explanation("chat/r2", well=False, now="chat/r2 is out.", because=("hung",))
                    self.wfile.write(json.dumps(rows.document(story)).encode())
                else:
                    self.wfile.write(json.dumps(rows.document(rows.policies_status())).encode())

            def log_message(self, *_: object) -> None:
                return

        released = self.released = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


class Terminal:
    """``switchgear top`` on a terminal of its own."""

    def __init__(self, url: str, *command: str, term: str = "xterm-256color") -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [SWITCHGEAR, *(command or ("top",)), "--admin", url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": term},
            start_new_session=True,
        )
        self.seen = ""

    def until(self, text: str) -> None:
        """Return once ``text`` is shown again."""
        end_s = time.monotonic() + LIMIT_S
        while text not in self.seen:
            ready, _, _ = select.select([self.ours], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"{text!r} is not in {self.seen[-3000:]!r}"
            self.seen += os.read(self.ours, 65536).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)
        os.close(self.ours)
        os.close(self.theirs)


def test_keys_lead_through_the_engines_and_a_restart_is_survived(server: Server) -> None:
    terminal = Terminal(server.url)
    try:
        terminal.until("chat/r2")
        terminal.until("LAST EVENTS")
        terminal.press("\x1b[B")
        terminal.until("> chat/r2")
        terminal.press("\r")
        terminal.until("chat/r2 is out.")
        terminal.press("\x1b")
        terminal.until("LAST EVENTS")
        terminal.press("s")
        terminal.until("sort load")
        terminal.press("p")
        terminal.until("pool chat")
        server.close()
        terminal.until("; last known state:")
        again = Server(server.port)
        try:
            terminal.until("serving")
        finally:
            again.close()
        terminal.press("q")
        assert terminal.process.wait(LIMIT_S) == 0
        assert termios.tcgetattr(terminal.theirs) == terminal.before, "the terminal is as it was"
    finally:
        terminal.close()


def test_a_pipe_gets_one_picture_without_colours(server: Server) -> None:
    done = subprocess.run(
        [SWITCHGEAR, "top", "--admin", server.url], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    engines = [line.split()[0] for line in done.stdout.splitlines() if line.strip().startswith("chat/")]
    assert engines[:2] == ["chat/r2", "chat/r1"], "the worst first"
    assert "SG208 hung: no token for 5 s" in done.stdout
    assert "critical SG204 proxy n1: RDS refused: port-1: bad regex (for 5.0s)" in done.stdout
    assert "10s ago  chat/r2: ejected" in done.stdout


def test_a_dumb_terminal_gets_one_picture_too(server: Server) -> None:
    terminal = Terminal(server.url, term="dumb")
    try:
        terminal.until("chat/r2")
        assert terminal.process.wait(LIMIT_S) == 0
    finally:
        terminal.close()


@pytest.mark.parametrize("form", ["a-long-name-of-a-pool/r{}", "p/r{}.a-very-long-host.test"])
@pytest.mark.parametrize("width", [80, 100, 300, 0])
def test_long_engine_names_stay_distinct(form: str, width: int) -> None:
    board = LiveState()
    long = [form.replace("a-", "a-" * 12).format(number) for number in (1, 2)]
    board.take("frame", frame(engines={name: engine() for name in long}))
    shown = render_screen(board, TopSelection(sort="name"), width, 0).plain.splitlines()
    at = next(number for number, line in enumerate(shown) if line.startswith("  ENGINE "))
    first, second = (line.split()[0] for line in shown[at + 1 : at + 3])
    assert first != second
    if width in (0, 300):
        assert [first, second] == long


def test_missing_server_at_start_is_exit_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--admin", "http://127.0.0.1:1"]) == 2
    assert "no server answers" in capsys.readouterr().err


@pytest.mark.parametrize("width", [20, 60, 89, 90, 200])
@pytest.mark.parametrize("height", [5, 12, 30])
def test_a_picture_never_leaves_its_terminal(width: int, height: int) -> None:
    board = LiveState()
    many = {f"chat/{'x' * 30}{number}": engine() for number in range(100)}
    board.take("frame", frame(engines=many, pools={f"p{number}": pool() for number in range(9)}))
    name = f"chat/{'x' * 30}99"
    lines = render_screen(board, TopSelection(selected=name, sort="name"), width, height).plain.split("\n")
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    if height == 30:
        assert any(line.startswith(">") for line in lines), "the chosen one is shown"


def test_stage_of_a_pool_is_shown() -> None:
    board = LiveState()
    board.take("frame", frame(pools={"first": pool(stage="prefill"), "chat": pool(level=0, stage="decode")}))
    shown = render_screen(board, TopSelection(), 120, 30).plain
    assert "prefill; more is asked than served" in shown
    assert shown.index("chat") < shown.index("decode") < shown.index("first")


def test_top_strips_control_characters_from_names() -> None:
    board = LiveState()
    board.take("frame", frame(engines={"chat/\x1b[2J": engine("UNHEALTHY", "a\x1b]0;x\x07b\nc")}))
    shown = render_screen(board, TopSelection(), 100, 30).plain
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_an_empty_server_is_a_picture_too() -> None:
    board = LiveState()
    empty = {"server": {"server": {"ready": False, "reason": "reading policies", "policies": "unread"}}}
    found = {
        "SG206": {"code": "SG206", "severity": "warning", "rank": 1, "sentence": "no proxy is connected"},
        "SG207": {"code": "SG207", "severity": "critical", "subject": "server", "sentence": "reading policies"},
        "SG274": {"code": "SG274", "severity": "info", "rank": 2, "sentence": "1 proxy"},
    }
    board.take("frame", {"at": 1.0, "tables": empty | {"conditions": found}, "events": []})
    shown = render_screen(board, TopSelection(), 100, 30).plain
    assert "not ready" in shown
    assert shown.index("critical SG207 server: reading policies") < shown.index("SG206"), "the worst first"
    assert "SG274" not in shown
    assert "gone" in render_screen(board, TopSelection(), 100, 30, "the server is gone").plain


def test_unknown_pool_is_a_usage_error(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--admin", server.url, "--pool", "cat"]) == 2
    assert "no pool 'cat'; did you mean chat" in capsys.readouterr().err
    assert main(["top", "--admin", server.url, "--pool", "chat"]) == 0


def test_data_is_one_snapshot_of_the_pool(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--admin", server.url, "-o", "json"]) == 0
    everything = json.loads(capsys.readouterr().out)
    pool = next(iter(everything["tables"]["pools"]))
    assert main(["top", "--admin", server.url, "--pool", pool, "-o", "json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert list(tables["pools"]) == [pool]
    assert {row["pool"] for row in tables["engines"].values()} <= {pool}
