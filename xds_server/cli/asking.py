"""Asking a running server over its admin port: one option, and one way to say that it cannot be asked."""

import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

import click

TIMEOUT_S: Final = 5.0

admin_option = click.option(
    "--admin",
    default="http://127.0.0.1:18001",
    show_default=True,
    envvar="SWITCHGEAR_ADMIN_URL",
    metavar="URL",
    help="Admin port of the server.",
)


class NoAnswerError(click.ClickException):
    """Nobody answers as a Switchgear does. The question was well put, so its usage is not shown with it."""


class RefusedError(click.ClickException):
    """The server understood and refused; ``status`` is its HTTP status, the message its own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def ask(admin: str, path: str, *, method: str = "GET", body: Any = None) -> Any:
    """The JSON the admin port answers at ``path``; ``NoAnswerError`` when it cannot be had."""
    host, port = _place(admin)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        text = answer.read()
    except http.client.HTTPException as error:  # what it says instead may be binary
        raise NoAnswerError(f"{admin} answers, but not in HTTP: is it the --admin port?") from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise NoAnswerError(f"no server answers at {admin}: {reason}. Is `switchgear serve` running?") from error
    finally:
        connection.close()
    try:
        found = json.loads(text)
    except ValueError as error:
        raise NoAnswerError(f"{admin} answers, but not as Switchgear does: is it the --admin port?") from error
    if answer.status in (http.client.OK, http.client.CREATED):
        return found
    said = found.get("error") if isinstance(found, dict) else None
    # What the server says of a path it does not have begins with the method, as in "GET /v1/why: Not Found".
    if not isinstance(said, str) or said.startswith(f"{method} "):
        raise NoAnswerError(f"{admin}{path} answered {answer.status}: is it the --admin port of a Switchgear?")
    raise RefusedError(answer.status, said)


def _place(admin: str) -> tuple[str, int]:
    """Host and port of the admin port; ``click.UsageError`` when ``admin`` names none."""
    wrong = click.UsageError(f"--admin {admin!r} is not an address such as http://127.0.0.1:18001")
    try:
        url = urlsplit(admin if "//" in admin else f"http://{admin}")
        host, port = url.hostname, url.port
    except ValueError as error:
        raise wrong from error
    if url.scheme != "http" or not host:
        raise wrong
    return host, port or 80
