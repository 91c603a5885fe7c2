"""``switchgear status`` reads the admin port and answers by its exit code."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from xds_server.cli import main

REFUSED = {"name": "port-1", "version": "v2", "origins": ["routes.yaml:7:3"], "reason": "bad regex"}


class Server:
    """An admin port that answers what the test says."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {
            "/v1/proxies": {"proxies": [proxy("n1", RDS="SYNCED", CDS="STALE")]},
            "/v1/policies": {
                "state": "accepted",
                "age_s": 300.0,
                "serving_digest": "0123456789abcdef",
                "stale": False,
                "held": "",
                "errors": [],
            },
            "/v1/engines": {
                "engines": [
                    engine("e1"),
                    engine("e2", agent=None, source="probe", gpu=None),
                    engine("e3", health="DRAINING", verdict="draining", reason="draining: told to"),
                ]
            },
        }
        pages = self.pages

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path)
                self.send_response(200 if page is not None else 404)
                self.end_headers()
                self.wfile.write(page if isinstance(page, bytes) else json.dumps(page).encode())

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def engine(name: str, **said: Any) -> dict[str, Any]:
    return {
        "pool": "chat",
        "engine": name,
        "health": "HEALTHY",
        "verdict": "ready",
        "evidence": "tokens advance",
        "reason": "",
        "report_age_s": 0.4,
        "source": "agent",
        "agent": {"connected": True},
        "gpu": {"action": "none", "statement": "", "gpus": [{"temperature_c": 61}, {"temperature_c": None}]},
    } | said


def proxy(node: str, **states: str) -> dict[str, Any]:
    types = [
        {"type": kind, "state": state, "age_s": 12.4, "refused": [REFUSED] if state == "NACK" else []}
        for kind, state in states.items()
    ]
    return {"node": node, "zone": "z1", "role": "gateway", "types": types}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_all_is_well_while_a_push_is_under_way(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--admin", server.url]) == 0
    out = capsys.readouterr().out
    assert "policies accepted for 5m; serving 0123456789ab" in out
    assert "engines of chat: 1 DRAINING, 2 HEALTHY" in out
    assert "SYNCED 12s" in out
    assert "STALE 12s" in out


def test_engines_show_who_says_what_and_how_long_ago(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    hot = {"action": "drain", "statement": "", "gpus": [{"temperature_c": 95}]}
    lost = engine("e4", agent={"connected": False}, source="probe", gpu=hot)
    server.pages["/v1/engines"]["engines"].append(lost)
    assert main(["status", "--admin", server.url]) == 0
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.startswith("chat/")]
    assert rows == [
        "chat/e3 DRAINING draining agent 0.4s 2, 61 °C draining: told to",
        "chat/e4 HEALTHY ready probe, agent lost 0.4s drain: 1, 95 °C tokens advance",
        "chat/e1 HEALTHY ready agent 0.4s 2, 61 °C tokens advance",
        "chat/e2 HEALTHY ready probe 0.4s - tokens advance",
    ], "what needs a look comes first"
    server.pages["/v1/engines"]["engines"] += [engine(f"m{n}") for n in range(30)]
    assert main(["status", "--admin", server.url]) == 0
    assert "... and 14 more" in capsys.readouterr().out


def test_a_refusal_is_the_answer_no_with_its_place(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages["/v1/proxies"] = {"proxies": [proxy("n1", RDS="SYNCED"), proxy("n2", RDS="NACK")]}
    assert main(["status", "--admin", server.url]) == 1
    assert "NACK n2 RDS port-1 (routes.yaml:7:3): bad regex" in capsys.readouterr().out


def test_refused_and_held_policies_are_the_answer_no(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    problem = {"place": "a.yaml:1:2", "code": "SG023", "path": "spec.modle", "message": "unknown field"}
    whole = {"place": "b.yaml", "code": "SG006", "path": "", "message": "nothing here"}
    server.pages["/v1/policies"] |= {"state": "refused", "errors": [problem, whole], "stale": True}
    assert main(["status", "--admin", server.url]) == 1
    out = capsys.readouterr().out
    assert "a.yaml:1:2: SG023 spec.modle: unknown field" in out
    assert "b.yaml: SG006: nothing here" in out
    assert "stale" in out
    server.pages["/v1/policies"] |= {"state": "held", "errors": [], "held": "would drop 9 of 10"}
    assert main(["status", "--admin", server.url]) == 1
    assert "held back: would drop 9 of 10" in capsys.readouterr().out


def test_json_is_what_the_server_said(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--admin", server.url, "--output", "json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["proxies"] == server.pages["/v1/proxies"]["proxies"]
    assert out["policies"] == server.pages["/v1/policies"]


def test_no_proxy_is_said_in_words(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages["/v1/proxies"] = {"proxies": []}
    assert main(["status", "--admin", server.url]) == 0
    assert "no proxy is connected" in capsys.readouterr().out


def test_a_server_that_cannot_be_asked(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for admin, says in (
        ("http://127.0.0.1:1", "no server answers"),
        ("ftp://127.0.0.1", "is not an address"),
        ("http://127.0.0.1:port", "is not an address"),
    ):
        assert main(["status", "--admin", admin]) == 2
        assert says in capsys.readouterr().err
    server.pages["/v1/policies"] = b"<html>"
    assert main(["status", "--admin", server.url]) == 2
    assert "not as Switchgear does" in capsys.readouterr().err
    del server.pages["/v1/proxies"]
    assert main(["status", "--admin", server.url]) == 2
    assert "answered 404" in capsys.readouterr().err


def test_a_port_that_does_not_speak_http(capsys: pytest.CaptureFixture[str]) -> None:
    # As a gRPC port answers: a frame of HTTP/2.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1024)
                peer.sendall(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\r\n")

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(answer)
            assert main(["status", "--admin", f"http://127.0.0.1:{port}"]) == 2
            done.result(timeout=30)
    assert "is it the --admin port?" in capsys.readouterr().err


def test_a_source_that_is_out_of_touch_is_said_with_what_is_served_meanwhile(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pages["/v1/policies"] |= {"source": "kubernetes", "lost_s": {"pods": 40.2, "nodes": 12.0}}
    assert main(["status", "--admin", server.url]) == 0
    said = "Kubernetes API not reached for 40s (nodes, pods): serving what was last known"
    assert said in capsys.readouterr().out
    server.pages["/v1/policies"] |= {"state": "unreached", "serving_digest": ""}
    assert main(["status", "--admin", server.url]) == 1
    assert "nothing is served before it answers" in capsys.readouterr().out


def test_which_version_is_served_and_the_canary_beside_it(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"number": 1, "source": "files", "by": "files", "serving": True}
    server.pages["/v1/history"] = {"versions": [files], "stands": 0}
    server.pages["/v1/apply"] = {"state": "none"}
    assert main(["status", "--admin", server.url]) == 0
    out = capsys.readouterr().out
    assert "  version 1, files\n" in out
    assert "canary" not in out
    applied = {"number": 2, "source": "applied", "by": "ann", "serving": True}
    server.pages["/v1/history"] = {"versions": [{**files, "serving": False}, applied], "stands": 2}
    server.pages["/v1/apply"] = {
        "state": "running",
        "by": "bob",
        "percent": 10.0,
        "proxies": ["n1"],
        "age_s": 20.0,
        "left_s": 40.0,
        "word": "unknown",
    }
    assert main(["status", "--admin", server.url]) == 0
    out = capsys.readouterr().out
    assert "  version 2, applied by ann; it stands until the files change\n" in out
    assert "canary of bob at 10 % (1 proxies) for 20s, 40s left: unknown" in out
