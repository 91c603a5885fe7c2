"""How a command connects: never in plain text where that would ignore or give away what was said."""

import http.client
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from xds_server.cli import asking, main
from xds_server.cli.asking import _META, opened


def connection(admin: str, said: dict[str, object]) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    with click.Context(click.Command("x")) as context:
        context.meta[_META] = said
        return opened(admin)


@pytest.mark.parametrize("option", ["cacert", "cert", "key", "server_name"])
@pytest.mark.parametrize("admin", ["prod:18001", "http://127.0.0.1:18001"])
def test_what_is_for_https_is_refused_over_http(option: str, admin: str) -> None:
    with pytest.raises(click.UsageError, match=f"--{option.replace('_', '-')} is for https.*write https://"):
        connection(admin, {option: "x"})


def test_a_token_goes_in_plain_text_to_this_machine_only(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 32)
    for admin in ("prod:18001", "http://10.2.0.1:18001"):
        with pytest.raises(click.UsageError, match="plain text"):
            connection(admin, {"token_file": token})
    for admin in ("127.0.0.1:18001", "http://localhost:18001", "http://[::1]:18001", "https://prod:18001"):
        assert connection(admin, {"token_file": token})[1] == {"Authorization": f"Bearer {'t' * 32}"}


def test_a_server_that_takes_the_connection_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert main(["status", "--admin", f"http://127.0.0.1:{port}"]) == 2
        assert "within 0.05 s: it hangs, is overloaded" in capsys.readouterr().err
        assert main(["status", "--admin", f"https://127.0.0.1:{port}"]) == 2
        assert "within 0.05 s: it hangs, is overloaded" in capsys.readouterr().err


@pytest.mark.parametrize("status", [b"500 Internal Server Error", b"502 Bad Gateway"])
def test_a_server_that_fails_is_not_taken_for_another(status: bytes, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert f"answered {status.decode()}: a fault of the server, which its log tells" in said
    assert "is it the --admin port" not in said


def test_a_server_that_breaks_off_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def half() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"proxies": [')

        done = pool.submit(half)
        assert main(["status", "--admin", f"http://127.0.0.1:{listener.getsockname()[1]}"]) == 2
        done.result(timeout=30)
    assert "broke off in the middle of its answer" in capsys.readouterr().err
