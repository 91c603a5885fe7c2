"""How a command connects: never in plain text where that would ignore TLS options or leak a token."""

import http.client
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from tests.xds_server.rollout.test_policy_versions import text
from xds_server.cli import main
from xds_server.cli.admin_client import _no_http, admin_connection
from xds_server.cli.connection_options import META


def connection(admin: str, said: dict[str, object]) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    with click.Context(click.Command("x")) as context:
        context.meta[META] = said
        return admin_connection(admin)


@pytest.mark.parametrize("option", ["cacert", "cert", "key", "server_name"])
@pytest.mark.parametrize("admin", ["prod:18001", "http://127.0.0.1:18001"])
def test_tls_option_needs_https(option: str, admin: str) -> None:
    with pytest.raises(click.UsageError, match=f"--{option.replace('_', '-')} needs https"):
        connection(admin, {option: "x"})


def test_token_is_sent_in_plain_text_to_loopback_only(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 32)
    for admin in ("prod:18001", "http://10.2.0.1:18001"):
        with pytest.raises(click.UsageError, match="plain text"):
            connection(admin, {"token_file": token})
    for admin in ("127.0.0.1:18001", "http://localhost:18001", "http://[::1]:18001", "https://prod:18001"):
        assert connection(admin, {"token_file": token})[1] == {"Authorization": f"Bearer {'t' * 32}"}


def test_silent_server_times_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Not the constant: a command that is imported meanwhile would keep it in its help.
    monkeypatch.setenv("SWITCHGEAR_TIMEOUT", "100ms")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert main(["status", "--admin", f"http://127.0.0.1:{port}"]) == 2
        assert "within 0.1 s: it hangs, is overloaded" in capsys.readouterr().err
        assert main(["status", "--admin", f"https://127.0.0.1:{port}"]) == 2
        assert "within 0.1 s: it hangs, is overloaded" in capsys.readouterr().err


def test_timeout_comes_from_flag_or_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["status", "--admin", admin, "--timeout", "100ms"]) == 2
        assert "within 0.1 s: it hangs" in capsys.readouterr().err
        monkeypatch.setenv("SWITCHGEAR_TIMEOUT", "0.2s")
        assert main(["rollback", "--admin", admin]) == 2
        assert "within 0.2 s: it hangs" in capsys.readouterr().err
    for wrong in ("0s", "5", "11m", "soon", "-1s"):
        assert main(["status", "--timeout", wrong]) == 2
        assert "--timeout" in capsys.readouterr().err


@pytest.mark.parametrize("status", [b"500 Internal Server Error", b"502 Bad Gateway"])
def test_server_error_is_not_taken_for_another_server(status: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def fails() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\n<html")

        done = pool.submit(fails)
        assert main(["status", "--admin", f"http://127.0.0.1:{listener.getsockname()[1]}"]) == 2
        done.result()
    said = capsys.readouterr().err
    assert f"answered {status.decode()}: see the server's log" in said
    assert "is it the admin port" not in said


def test_incomplete_answer_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def half() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"proxies": [')

        done = pool.submit(half)
        assert main(["status", "--admin", f"http://127.0.0.1:{listener.getsockname()[1]}"]) == 2
        done.result(timeout=30)
    assert "closed the connection before the answer was complete" in capsys.readouterr().err


class Answering:
    """Another server: the same answer to every request."""

    def __init__(self) -> None:
        self.status, self.page = 200, b""
        stranger = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(stranger.status)
                self.send_header("Content-Length", str(len(stranger.page)))
                self.end_headers()
                self.wfile.write(stranger.page)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def stranger() -> Iterator[Answering]:
    made = Answering()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.parametrize(
    ("status", "page"),
    [
        (200, b"{}"),
        (200, b"[]"),
        (200, b"null"),
        (200, b'{"proxies": null, "engines": 3, "pools": [1], "orders": {}, "versions": "x", "resources": [[]]}'),
        (
            200,
            b'{"proxies": [{}], "engines": [{}], "pools": [{}], "versions": [{}], "state": "canary"}',
        ),
        (200, b"[" * 100_000 + b"]" * 100_000),
        (200, b"<html>"),
        (200, bytes(range(256))),
        (404, b'{"detail": "Not Found"}'),
        (302, b""),
    ],
)
def test_other_server_is_a_usage_error_of_every_command(
    stranger: Answering, status: int, page: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.status, stranger.page = status, page
    policies = tmp_path / "p.yaml"
    policies.write_text(text("p"))
    for command in (
        ["status"],
        ["status", "-o", "json"],
        *(["get", kind, "-o", "wide"] for kind in ("engines", "pools", "proxies", "orders", "audit", "shadow")),
        ["get", "engines", "--pool", "chat"],
        ["why", "r1"],
        ["tap"],
        ["top"],
        ["diff", "-f", str(policies)],
        ["history"],
        ["history", "1", "-o", "yaml"],
        ["apply", str(policies)],
        ["apply", str(policies), "--canary", "10%"],
        ["rollback"],
        ["config-dump", "n1"],
        ["eject", "r1", "--for", "1m", "--reason", "x"],
        ["restore", "r1"],
    ):
        assert main([*command, "--admin", stranger.url]) == 2, command
        said = capsys.readouterr()
        assert (said.out, said.err.startswith("Error: ") or said.err.startswith("Usage: ")) == ("", True), command
    assert main(["doctor", "--admin", stranger.url]) == 1
    assert "SG220" in capsys.readouterr().out
    assert main(["bug-report", "--admin", stranger.url, "--out", str(tmp_path / "bundle.tar.gz")]) == 1
    assert "missing: " in capsys.readouterr().err


def test_doctor_and_bug_report_work_without_access(
    stranger: Answering, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.status, stranger.page = 401, b'{"error": "not authenticated"}'
    assert main(["doctor", "--admin", stranger.url]) == 1
    said = capsys.readouterr().out
    assert "fail SG220 server: " in said
    assert "refuses: not authenticated" in said
    assert "ok   version" in said
    target = tmp_path / "bundle.tar.gz"
    assert main(["bug-report", "--admin", stranger.url, "--out", str(target)]) == 1
    assert "missing: server: not authenticated" in capsys.readouterr().err
    assert target.exists()


def test_closed_connection_after_handshake_points_to_the_certificate() -> None:
    ended = http.client.RemoteDisconnected("closed")
    assert "See --cert" in _no_http("https://cp:18001", ended)
    assert "is it the admin port?" in _no_http("http://cp:18001", ended)
    assert "is it the admin port?" in _no_http("https://cp:18001", http.client.BadStatusLine("x"))


def test_https_to_a_plain_port_says_use_http(stranger: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    place = stranger.url.removeprefix("http://")
    assert main(["status", "--admin", f"https://{place}"]) == 2
    assert f"the server speaks plain HTTP: use http://{place}" in capsys.readouterr().err


def test_http_to_a_tls_port_says_use_https(
    stranger: Answering, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", "dev", str(tmp_path)]) == 0
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    plain = stranger.server.socket
    stranger.server.socket = tls.wrap_socket(plain, server_side=True)
    capsys.readouterr()
    assert main(["status", "--admin", stranger.url]) == 2
    place = stranger.url.removeprefix("http://")
    assert f"the server speaks TLS: use https://{place}" in capsys.readouterr().err
    assert main(["--admin", stranger.url, "version"]) == 0
    assert "use https://" in capsys.readouterr().err
