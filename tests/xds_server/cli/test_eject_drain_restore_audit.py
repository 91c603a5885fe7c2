"""``why``, ``get``, ``eject``, ``drain``, ``restore`` as an operator runs them, against a real server."""

import contextlib
import http.server
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pytest
import yaml

from xds_server.cli import get, main

LIMIT_S = 60.0
SWITCHGEAR = str(Path(sys.executable).with_name("switchgear"))
PORTS = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


class Engine:
    """An engine that answers every request with a token until it is closed."""

    def __init__(self) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = b'{"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}, "server_load": 0}'
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Server:
    """A running ``switchgear serve`` and its command line."""

    def __init__(self, folder: Path, policies: str) -> None:
        self.folder = folder
        (folder / "policies").mkdir()
        (folder / "policies" / "chat.yaml").write_text(policies)
        self.start()

    def start(self) -> None:
        command = (SWITCHGEAR, "serve", "-f", str(self.folder / "policies"), *PORTS)
        kept = ("--state-dir", str(self.folder / "state"), "--ledger", str(self.folder / "ledger.jsonl"))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *kept], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "log").read_text()
        self.admin = f"http://{json.loads(line)['admin']}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=LIMIT_S)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, answers and remarks; in this process, for a program takes longer to start than to ask."""
        out, remarks = io.StringIO(), io.StringIO()
        with (
            patch.dict(os.environ, SWITCHGEAR_ADMIN_URL=self.admin),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(remarks),
        ):
            code = main(arguments)
        return code, out.getvalue(), remarks.getvalue()

    def executed(self, *arguments: str) -> tuple[int, str, str]:
        """The same of the program itself."""
        environment = {**os.environ, "SWITCHGEAR_ADMIN_URL": self.admin}
        done = subprocess.run(
            [SWITCHGEAR, *arguments], capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def until(self, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end_s, (self.folder / "log").read_text()
            time.sleep(0.05)

    def engine(self, name: str) -> dict[str, Any]:
        _, out, _ = self.run("get", "engines", "-o", "json")
        return next(one for one in json.loads(out)["engines"] if one["engine"] == name)


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[tuple[Server, list[Engine]]]:
    with contextlib.ExitStack() as leave:
        engines = [Engine() for _ in range(4)]
        for engine in engines:
            leave.callback(engine.close)
        endpoints = [
            f"    - {{address: 127.0.0.1, port: {engine.port}, name: r{number}, zone: {'ab'[number // 2]}}}\n"
            for number, engine in enumerate(engines)
        ]
        policies = (
            "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: chat}\n"
            "spec:\n  model: m\n  probe: {interval: 0.1s}\n  endpoints:\n" + "".join(endpoints)
        )
        server = Server(folder, policies)
        leave.callback(server.stop)
        yield server, engines


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Server, list[Engine]]]:
    """A server and its engines for one test, which may break them."""
    with _served(tmp_path) as served:
        yield served


@pytest.fixture
def server(own: tuple[Server, list[Engine]]) -> Server:
    return own[0]


@pytest.fixture
def engines(own: tuple[Server, list[Engine]]) -> list[Engine]:
    return own[1]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that change nothing."""
    with _served(tmp_path_factory.mktemp("untouched")) as (server, _):
        yield server


def test_ejection_and_readmission_are_explained_by_why(server: Server, engines: list[Engine]) -> None:
    server.until(lambda: server.run("why", "r1")[0] == 0)
    engines[1].close()
    server.until(lambda: server.engine("r1")["health"] == "UNHEALTHY")
    code, out, _ = server.run("why", "r1")
    assert code == 1
    assert out.startswith("chat/r1 (zone a) has been ejected for ")
    assert "connection refused" in out
    assert "spec.probe.unhealthyAfter: 2 (built-in default)" in out
    assert re.search(r"ago: ejected: dead: ", out)
    code, out, _ = server.run("why", "chat/r1", "-o", "json")
    story = json.loads(out)
    assert (code, story["well"], story["kind"]) == (1, False, "engine")
    assert server.run("why", "chat")[1].startswith("3 of 4 engines of pool chat are in rotation")
    assert server.run("why", "zone:a")[1].startswith("1 of 2 engines of zone a are in rotation")


def test_unknown_name_is_a_usage_error_with_a_hint(untouched: Server) -> None:
    code, out, error = untouched.run("why", "r11")
    assert (code, out) == (2, "")
    assert "did you mean r1" in error
    assert untouched.run("get", "engines", "--pool", "chta")[0] == 2
    assert untouched.run("eject", "chat", "--for", "1m", "--reason", "x")[0] == 2


@pytest.mark.parametrize("what", ["engines", "zones", "pools", "proxies", "orders", "events", "audit", "shadow"])
def test_every_type_has_every_format(untouched: Server, what: str) -> None:
    code, out, _ = untouched.run("get", what, "-o", "json")
    assert code == 0
    as_json = json.loads(out)[what]
    assert isinstance(as_json, list)
    assert list(yaml.safe_load(untouched.run("get", what, "-o", "yaml")[1])) == [what]
    narrow, wide = untouched.run("get", what)[1], untouched.run("get", what, "-o", "wide")[1]
    # More events may arrive before the table is printed.
    later = json.loads(untouched.run("get", what, "-o", "json")[1])[what]
    assert len(as_json) <= max(0, len(narrow.splitlines()) - 1) <= len(later)
    if as_json and what != "shadow":
        assert len(wide.splitlines()[0]) > len(narrow.splitlines()[0])


def test_eject_order_survives_a_restart_until_restore(server: Server) -> None:
    code, out, _ = server.executed("eject", "r0", "--for", "30m", "--reason", "bad link", "--by", "ann")
    assert (code, out) == (0, "Ejected chat/r0 for 30m: bad link\n")
    server.until(lambda: server.engine("r0")["health"] == "UNHEALTHY")
    orders = server.folder / "state" / "orders.json"
    server.until(lambda: orders.exists() and "bad link" in orders.read_text())
    server.stop()
    server.start()
    server.until(lambda: server.engine("r0")["health"] == "UNHEALTHY")
    (order,) = json.loads(server.run("get", "orders", "-o", "json")[1])["orders"]
    assert (order["engine"], order["by"], order["reason"]) == ("r0", "ann", "bad link")
    assert 1700 < order["left_s"] <= 1800
    told = server.run("why", "r0")[1]
    assert "operator order by ann: eject (bad link" in told
    assert "operator order: none -> eject" in told  # read from the ledger's file
    code, out, _ = server.run("restore", "r0", "-o", "yaml")
    assert (code, yaml.safe_load(out)) == (0, {"outcome": "ended", "reason": "", "order": None})
    server.until(lambda: server.engine("r0")["health"] == "HEALTHY")
    code, out, error = server.run("restore", "r0", "-o", "json")
    refused = json.loads(out)
    assert (code, refused["outcome"], refused["order"]) == (1, "refused", None)
    assert "no order for r0" in refused["reason"]
    code, _, error = server.executed("restore", "r0")
    assert code == 1
    assert "no order for r0" in error


def test_eject_below_the_floor_needs_force(server: Server) -> None:
    for name in ("r0", "r2"):
        assert server.run("drain", name, "--for", "5m", "--reason", "x")[0] == 0
        server.until(lambda name=name: server.engine(name)["health"] == "DRAINING")  # type: ignore[misc]
    code, _, error = server.run("eject", "r1", "--for", "5m", "--reason", "x")
    assert code == 1
    assert "25 % of its slots (floor: 50 %)" in error
    assert "--force" in error
    assert server.run("eject", "r1", "--for", "5m", "--reason", "x", "--force")[0] == 0
    server.until(lambda: server.engine("r1")["health"] == "UNHEALTHY")
    # An order that is not forced would take the place of the forced one, and the floor would overrule it at once.
    assert server.run("drain", "r1", "--for", "5m", "--reason", "y")[0] == 1
    assert server.engine("r1")["health"] == "UNHEALTHY"


def test_audit_log_records_actor_change_and_outcome(server: Server) -> None:
    assert server.run("get", "audit") == (0, "", "no change was attempted since the server started\n")
    code, out, error = server.run("drain", "r0", "--for", "5m", "--reason", "x", "--by", "ann", "-o", "json")
    given = json.loads(out)
    assert (code, given["outcome"], error) == (0, "ordered", "")
    (order,) = json.loads(server.run("get", "orders", "-o", "json")[1])["orders"]
    assert given["order"].keys() == order.keys()
    assert {**given["order"], "left_s": 0} == {**order, "left_s": 0}
    assert server.run("drain", "r9", "--for", "5m", "--reason", "x", "--by", "bob")[0] == 2
    code, out, _ = server.run("get", "audit", "-o", "json")
    assert code == 0
    writes = json.loads(out)["audit"]
    assert [(one["what"], one["status"]) for one in writes] == [
        ("POST /v1/orders drain r0, signed ann", 201),
        ("POST /v1/orders drain r9, signed bob", 404),
    ]
    assert yaml.safe_load(server.run("get", "audit", "-o", "yaml")[1])["audit"] == writes
    narrow = server.run("get", "audit")[1].splitlines()
    assert [line.split()[0] for line in narrow] == ["TIME", *(line[:10] for line in narrow[1:])]
    assert " ".join(narrow[1].split()[2:]) == "unknown done POST /v1/orders drain r0, signed ann"
    assert "not found" in narrow[2]
    assert "127.0.0.1" in server.run("get", "audit", "-o", "wide")[1]
    assert len(json.loads(server.run("get", "audit", "--since", "1h", "-o", "json")[1])["audit"]) == 2
    assert json.loads(server.run("get", "audit", "--by", "ann", "-o", "json")[1])["audit"] == []
    assert len(json.loads(server.run("get", "audit", "--by", "unknown", "-o", "json")[1])["audit"]) == 2
    for wrong in (("--pool", "chat"), ("--since", "soon")):
        assert server.run("get", "audit", *wrong)[0] == 2
    assert "--since works with usage, events, versions, audit" in server.run("get", "engines", "--since", "5m")[2]


def test_eject_order_of_an_ejected_engine_warns_of_the_floor(server: Server, engines: list[Engine]) -> None:
    server.run("drain", "r0", "--for", "5m", "--reason", "x")
    server.until(lambda: server.engine("r0")["health"] == "DRAINING")
    for name in ("r1", "r2"):
        engines[int(name[1])].close()
    server.until(
        lambda: server.engine("r2")["health"] == "UNHEALTHY" and server.engine("r1")["health"] == "UNHEALTHY"
    )
    code, out, remark = server.run("drain", "r1", "--for", "5m", "--reason", "x")
    assert (code, out) == (0, "Draining chat/r1 for 5m: x\n")
    assert "note: already ejected" in remark
    assert "after recovery it returns to rotation despite the order" in remark
    assert server.run("drain", "r1", "--for", "5m", "--reason", "x", "--force")[2] == ""


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"Content-Type": "text/plain"}, 415),
        ("POST", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ("POST", {"Content-Type": "application/json", "Origin": "http://evil.example"}, 403),
        ("DELETE", {"Origin": "http://evil.example"}, 403),
    ],
)
def test_cross_origin_page_cannot_eject(
    untouched: Server, method: str, headers: dict[str, str], status: int
) -> None:
    body = json.dumps({"engine": "r0", "action": "eject", "for_s": 60, "reason": "x"}).encode()
    request = urllib.request.Request(
        f"{untouched.admin}/v1/orders?name=r0" if method == "DELETE" else f"{untouched.admin}/v1/orders",
        data=body,
        headers=headers,
        method=method,
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=LIMIT_S)
    with refused.value as answer:
        assert answer.code == status
    assert json.loads(untouched.run("get", "orders", "-o", "json")[1])["orders"] == []


def test_watch_on_a_pipe_prints_changed_rows(server: Server, engines: list[Engine]) -> None:
    environment = {**os.environ, "SWITCHGEAR_ADMIN_URL": server.admin}
    command = [SWITCHGEAR, "get", "engines", "--watch", "--interval", "100ms", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as watching:
        try:
            assert watching.stdout is not None
            first = [json.loads(watching.stdout.readline()) for _ in range(4)]
            assert [one["engine"] for one in first] == ["r0", "r1", "r2", "r3"]
            engines[3].close()
            while (news := json.loads(watching.stdout.readline()))["health"] != "UNHEALTHY":
                assert news["engine"] == "r3"
            assert news["engine"] == "r3"
        finally:
            watching.terminate()


def test_rows_of_a_lost_server_are_marked_as_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    trouble = "no server answers\x1b at http://127.0.0.1:1: refused"
    lines = [click.unstyle(line) for line in get._trouble_lines(trouble)]
    assert lines[1:] == ["last known state:"]
    assert (len(lines[0]), lines[0].startswith("no server answers"), "\x1b" in lines[0]) == (30, True, False)
    assert list(get._trouble_lines("")) == []


def test_cross_origin_page_cannot_release_held_policies(untouched: Server) -> None:
    page = urllib.request.Request(
        f"{untouched.admin}/v1/allow-shrink", method="POST", headers={"Origin": "http://evil.example"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(page, timeout=60)
    with refused.value:
        assert refused.value.code == 403


def test_degrade_holds_a_pool_at_a_level_until_restore(server: Server) -> None:
    server.until(lambda: server.run("why", "chat")[0] == 0)
    code, out, _ = server.run(
        "degrade", "chat", "--level", "3", "--for", "15m", "--reason", "GPU swap", "--by", "ann"
    )
    assert (code, out) == (0, "Holding chat at degradation level 3 for 15m: GPU swap\n")
    server.until(lambda: server.run("why", "chat")[0] == 1)
    story = server.run("why", "chat")[1]
    assert "degradation level 3" in story
    assert "Operator order by ann in force for" in story
    assert "degrade to level 3 (GPU swap)" in story
    assert "`switchgear restore POOL`" in story
    assert server.run("get", "orders")[1].splitlines()[1].split()[:4] == ["chat", "degrade", "to", "3"]
    (order,) = json.loads(server.run("get", "orders", "-o", "json")[1])["orders"]
    assert (order["pool"], order["engine"], order["action"], order["level"]) == ("chat", "", "degrade", 3)
    assert any("degrade to level 3" in line for line in server.run("get", "events")[1].splitlines())
    assert "degrade pool:chat to level 3, signed ann" in server.run("get", "audit")[1]
    server.stop()
    server.start()
    server.until(lambda: "degradation level 3" in server.run("why", "chat")[1])
    assert server.run("degrade", "chat", "--level", "1", "--for", "1m", "--reason", "less")[0] == 0
    server.until(lambda: "degradation level 1" in server.run("why", "chat")[1])
    assert server.run("restore", "chat")[0] == 0
    server.until(lambda: server.run("why", "chat")[0] == 0)
    assert server.run("restore", "chat")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("degrade", "chta", "--level", "1", "--for", "1m", "--reason", "x"), "did you mean chat"),
        (("degrade", "r1", "--level", "1", "--for", "1m", "--reason", "x"), "no engine, zone or pool 'pool:r1'"),
        (("degrade", "chat", "--level", "5", "--for", "1m", "--reason", "x"), "5 is not in the range 0<=x<=4"),
        (("degrade", "chat", "--for", "1m", "--reason", "x"), "Missing option '--level'"),
        (("degrade", "chat", "--level", "1", "--for", "1m"), "Missing option '--reason'"),
        (("eject", "chat", "--for", "1m", "--reason", "x"), "'chat' is not an engine: eject takes an engine"),
        (("restore", "zone:a"), "'zone:a' is a zone; orders apply to engines and pools"),
    ],
)
def test_invalid_order_names_the_fault(untouched: Server, arguments: tuple[str, ...], message: str) -> None:
    untouched.until(lambda: untouched.run("why", "r1")[0] == 0)
    code, out, err = untouched.run(*arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action": "degrade"}, "level is None; allowed: 0 to 4"),
        ({"action": "degrade", "level": 5}, "level is 5; allowed: 0 to 4"),
        ({"action": "eject", "level": 1}, "level is only for action degrade, not eject"),
    ],
)
def test_order_with_a_wrong_level_is_refused(untouched: Server, fields: dict[str, Any], message: str) -> None:
    body = {"engine": "pool:chat", "for_s": 60, "reason": "x", **fields}
    request = urllib.request.Request(
        f"{untouched.admin}/v1/orders", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    with refused.value:
        assert refused.value.code == 400
        assert message in refused.value.read().decode()


def test_control_characters_are_refused_and_not_printed(server: Server) -> None:
    server.until(lambda: server.run("why", "r1")[0] == 0)
    hostile = "two\nlines \x1b[31mred \x9b31m"
    for reason, author in ((hostile, "eve"), ("bad link", "e\x1bve")):
        code, out, err = server.run("drain", "r1", "--for", "30s", "--reason", reason, "--by", author)
        assert (code, out) == (2, "")
        assert "printable" in err
        assert not {"\x1b", "\x9b"} & set(err)
    assert "r1" not in server.run("get", "orders")[1]


@pytest.mark.parametrize("length", ["0s", "200h", "nonsense"])
def test_order_with_invalid_duration_is_a_usage_error(untouched: Server, length: str) -> None:
    code, _, err = untouched.run("eject", "r1", "--for", length, "--reason", "x")
    assert code == 2
    assert "duration" in err or "at most" in err
