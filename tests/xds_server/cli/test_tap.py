"""``switchgear tap`` against a server that refuses, goes and comes back."""

import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.xds_server.admin.test_tap_stream import one_try
from tests.xds_server.admin_api import rows
from xds_server.cli import main, tap

LIMIT_S = 60.0
SWITCHGEAR = str(Path(sys.executable).with_name("switchgear"))


def batch(*tries: Any, dropped: int = 0, sampling_ratio: float = 1.0) -> dict[str, Any]:
    return {"tries": [asdict(one) for one in tries], "dropped": dropped, "sampling_ratio": sampling_ratio}


class Server:
    """An admin port; each request for the stream gets the next of ``streams``, and then nothing."""

    def __init__(self) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.paths.append(self.path)
                if not self.path.startswith("/v1/tap"):
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(json.dumps(rows.document(rows.policies_status())).encode())
                    return
                found = server.streams.pop(0) if server.streams else None
                self.send_response(found if isinstance(found, int) else 200)
                self.end_headers()
                if isinstance(found, int):
                    self.wfile.write(b'{"error": "too many watchers of requests"}')
                    return
                for one in found or ():
                    self.wfile.write(f"event: tries\ndata: {json.dumps(one)}\n\n".encode())
                self.wfile.flush()
                if not server.streams:
                    released.wait(LIMIT_S)

            def log_message(self, *_: object) -> None:
                return

        server = self
        released = self.released = threading.Event()
        self.streams: list[Any] = []
        self.paths: list[str] = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(tap, "AGAIN_S", 0.01)
    made = Server()
    yield made
    made.close()


def test_table_keeps_its_columns_over_messages(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    late = one_try("r-22", engine="", number=0, result="refused", status=503, reason="overload: full")
    server.streams = [[batch(one_try()), batch(), batch(late)]]
    assert main(["tap", "--admin", server.url, "--count", "2"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    titles = ["TIME", "REQUEST", "CLASS", "POOL", "ENGINE", "TRY", "RESULT", "STATUS", "TOTAL", "REASON"]
    assert header.split() == titles
    assert first.split()[1:] == ["r-1", "interactive", "chat", "e0", "1", "success", "200", "2.000s", "-"]
    assert second.endswith("refused     503  2.000s  overload: full")
    assert first.index("success") == second.index("refused") == header.index("RESULT")


def test_json_is_one_object_per_line(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.streams = [[batch(one_try(), one_try("r-2"), one_try("r-3"))]]
    assert main(["tap", "--admin", server.url, "-o", "json", "--count", "2"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [asdict(one_try()), asdict(one_try("r-2"))]


def test_wide_shows_route_proxy_and_calls(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.streams = [[batch(one_try(calls=20.0, first_byte_s=0.25))]]
    assert main(["tap", "chat", "--admin", server.url, "-o", "wide", "--count", "1"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert all(title in header for title in ("THIS TRY", "FIRST BYTE", "ROUTE", "PROXY", "CALLS"))
    assert row.split()[-6:] == ["2.000s", "0.250s", "talk", "p1", "20", "-"]


def test_losses_and_sampling_are_remarks(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.streams = [
        [batch(sampling_ratio=0.2), batch(dropped=7, sampling_ratio=0.2), batch(one_try(), sampling_ratio=1.0)]
    ]
    assert main(["tap", "--admin", server.url, "--count", "1"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "sampling: proxies report 20% of calls",
        "7 tries not shown: more than this reader took",
        "sampling: proxies report all calls",
    ]


@pytest.mark.parametrize(
    ("options", "query"),
    [
        ([], ""),
        (["chat"], "pool=chat"),
        (["--refused", "--failed"], "only=refused%2Cfailed"),
        (["--slower-than", "2s"], "only=slow&slower_than=2s"),
    ],
)
def test_options_become_the_query(server: Server, options: list[str], query: str) -> None:
    server.streams = [[batch(one_try())]]
    assert main(["tap", *options, "--admin", server.url, "--count", "1"]) == 0
    assert server.paths[-1].partition("?")[2] == query


def test_lost_server_is_waited_for(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.streams = [[batch(one_try())], 503, [batch(one_try("r-2"))]]
    assert main(["tap", "--admin", server.url, "--count", "2", "-o", "json"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert said.err.splitlines() == [
        "the server closed the stream",
        "too many watchers of requests",
        "the server answers again; requests meanwhile are not shown",
    ]


def test_errors_at_the_start_are_exit_status_2(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.streams = [503]
    assert main(["tap", "--admin", server.url]) == 2
    assert "too many watchers" in capsys.readouterr().err
    server.streams = [[{"tries": 3}]]
    assert main(["tap", "--admin", server.url]) == 2
    assert capsys.readouterr().err.startswith("Error: ")
    assert main(["tap", "cat", "--admin", server.url]) == 2
    assert "no pool 'cat'; did you mean chat" in capsys.readouterr().err
    assert main(["tap", "--slower-than", "soon", "--admin", server.url]) == 2
    assert main(["tap", "--count", "0", "--admin", server.url]) == 2


def test_control_characters_of_callers_are_not_printed(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.streams = [[batch(one_try("\x1b[2J\nx", reason="a\x07b"))]]
    assert main(["tap", "--admin", server.url, "--count", "1"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_ctrl_c_is_exit_status_130(server: Server) -> None:
    server.streams = [[batch(one_try())]]
    process = subprocess.Popen(
        [SWITCHGEAR, "tap", "--admin", server.url, "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["request"] == "r-1", "written at once, also to a pipe"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in error


def test_silence_of_the_server_is_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tap, "SILENT_S", 0.2)
    server.streams = [[batch(one_try())]]
    began_s = time.monotonic()

    def again() -> None:
        while sum(path.startswith("/v1/tap") for path in server.paths) < 2:
            assert time.monotonic() - began_s < LIMIT_S
            time.sleep(0.02)
        server.streams.append([batch(one_try("r-2"))])

    waiting = threading.Thread(target=again)
    waiting.start()
    assert main(["tap", "--admin", server.url, "--count", "2", "-o", "json"]) == 0
    waiting.join()
    assert "no server answers" in capsys.readouterr().err
