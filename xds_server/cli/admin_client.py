"""Requests to the admin port of a running server, and one error for a server that cannot answer them."""

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import click

from command_line.https_connection import NamedHTTPSConnection, answers_plain, speaks_tls
from engine.address import ListenAddress
from xds_server.admin_api.endpoints import AdminEndpoint
from xds_server.admin_api.parse import ShapeError, parse
from xds_server.cli.connection_options import ConnectionSettings, connection_settings

_T = TypeVar("_T")


class NoAnswerError(click.ClickException):
    """No Switchgear answers. The command line was right, so its usage is not shown."""


class UnknownPathError(NoAnswerError):
    """HTTP 404: another server, or an older Switchgear."""


class AdminApiError(click.ClickException):
    """The server refused: its HTTP status, its message and the whole answer."""

    def __init__(self, status: int, message: str, answer: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.status = status
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAnswer(Generic[_T]):
    """An answer of the admin port, typed, and the JSON document as the server sent it."""

    value: _T
    document: Any


def fetch(
    admin: str,
    endpoint: AdminEndpoint[_T],
    *path: str | int,
    query: Sequence[tuple[str, str]] = (),
    body: Mapping[str, Any] | None = None,
) -> AdminAnswer[_T]:
    """The answer of an endpoint; ``NoAnswerError`` where it is unavailable or not of the endpoint's type."""
    document = request_json(admin, endpoint.url(*path, query=query), method=endpoint.method, body=body)
    try:
        return AdminAnswer(value=parse(endpoint.answer, document), document=document)
    except ShapeError as error:
        raise NoAnswerError(f"{_not_ours(admin)} ({error})") from error


def request_json(admin: str, path: str, *, method: str = "GET", body: Any = None) -> Any:
    """The JSON document at ``path`` of the admin port; ``NoAnswerError`` where it is unavailable."""
    connection, headers = admin_connection(admin)
    try:
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        text = answer.read()
    except http.client.IncompleteRead as error:
        raise NoAnswerError(f"{admin} closed the connection before the answer was complete") from error
    except (http.client.HTTPException, ConnectionResetError) as error:  # the answer may be binary
        raise NoAnswerError(_no_http(admin, error)) from error
    except ssl.SSLError as error:
        raise NoAnswerError(_no_tls(admin, error)) from error
    except TimeoutError as error:
        reason = "it hangs, is overloaded, or a firewall drops packets. To wait longer, use --timeout"
        raise NoAnswerError(f"no server answers at {admin} within {connection.timeout:g} s: {reason}") from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise NoAnswerError(f"no server answers at {admin}: {reason}. Is `switchgear serve` running?") from error
    finally:
        connection.close()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        if answer.status >= http.client.INTERNAL_SERVER_ERROR:
            fault = "see the server's log, or that of a proxy in front of it"
            raise NoAnswerError(f"{admin}{path} answered {answer.status} {answer.reason}: {fault}") from error
        raise NoAnswerError(_not_ours(admin)) from error
    if answer.status in (http.client.OK, http.client.CREATED):
        if not isinstance(found, dict):
            raise NoAnswerError(_not_ours(admin))
        return found
    message = found.get("error") if isinstance(found, dict) else None
    # The error for an unknown path begins with the method, as in "GET /v1/why: Not Found".
    if not isinstance(message, str) or message.startswith(f"{method} "):
        kind = UnknownPathError if answer.status == http.client.NOT_FOUND else NoAnswerError
        raise kind(f"{admin}{path} answered {answer.status}: is it the admin port of a Switchgear?")
    raise AdminApiError(answer.status, message, found)


def event_stream(admin: str, path: str, *, timeout_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and JSON of server-sent events until the server closes the stream.

    ``AdminApiError`` where it refuses; ``NoAnswerError`` for another server, one that is gone, or one silent for
    ``timeout_s``.
    """
    connection, headers = admin_connection(admin, timeout_s=timeout_s)
    try:
        with contextlib.closing(connection):
            connection.request("GET", path, None, headers | {"Accept": "text/event-stream"})
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise _stream_refusal(admin, path, answer)
            event = ""
            while line := answer.readline():
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    event = value
                elif field == "data":
                    yield event, json.loads(value)
    except (http.client.HTTPException, ValueError, RecursionError) as error:
        raise NoAnswerError(_not_ours(admin)) from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise NoAnswerError(f"no server answers at {admin}: {reason}") from error


def _stream_refusal(admin: str, path: str, answer: http.client.HTTPResponse) -> click.ClickException:
    """The error of a stream that was not opened."""
    with contextlib.suppress(ValueError):
        found = json.loads(answer.read())
        if isinstance(found, dict) and isinstance(found.get("error"), str):
            return AdminApiError(answer.status, found["error"], found)
    return NoAnswerError(f"{admin}{path} answered {answer.status} {answer.reason}")


def _no_tls(admin: str, error: ssl.SSLError) -> str:
    """The error for a handshake that failed."""
    if answers_plain(error):
        return f"{admin}: the server speaks plain HTTP: use http://{admin.partition('//')[2]}"
    reason = getattr(error, "verify_message", "") or error.reason or str(error)
    return f"{admin}: {reason}. See --cacert, --cert and --server-name"


def _no_http(admin: str, error: Exception) -> str:
    """The error for a server that does not answer in HTTP."""
    # A server that refuses a client certificate hangs up: by then a TLS 1.3 handshake is over on this side.
    hung_up = isinstance(error, http.client.RemoteDisconnected | ConnectionResetError)
    if hung_up and admin.startswith("https:"):
        return f"{admin} closed the connection: is the client certificate expired or of another CA? See --cert"
    if not admin.startswith("https:") and speaks_tls(*_place(admin)[1:]):
        return f"{admin}: the server speaks TLS: use https://{admin.partition('//')[2] or admin}"
    if hung_up:
        return f"{admin} closed the connection without an answer: is it the admin port?"
    return f"{admin} does not answer in HTTP: is it the admin port?"


def _not_ours(admin: str) -> str:
    """The error for another server, or a Switchgear of another version."""
    return f"{admin} does not answer as Switchgear does: is it the admin port, of the same version?"


def admin_connection(
    admin: str, *, timeout_s: float | None = None
) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    """An unopened connection to the admin port, and the headers that authenticate.

    As ``connection_settings`` says; ``click.UsageError`` where that cannot be used.
    """
    settings = connection_settings()
    timeout_s = timeout_s or settings.timeout_s
    scheme, host, port = _place(admin)
    if scheme == "http":
        _plain(host, settings)
    headers = {}
    if settings.token_file:
        headers["Authorization"] = f"Bearer {_token(settings.token_file)}"
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=timeout_s), headers
    try:
        tls = ssl.create_default_context(cafile=settings.cacert)
        if settings.cert:
            tls.load_cert_chain(settings.cert, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise click.UsageError(f"--cacert, --cert, --key: {error}") from error
    name = settings.server_name or host
    return NamedHTTPSConnection(host, port, name=name, timeout_s=timeout_s, context=tls), headers


def _plain(host: str, settings: ConnectionSettings) -> None:
    """``click.UsageError`` where plain text would ignore TLS options, or send a token over a network."""
    for name in ("cacert", "cert", "key", "server_name"):
        if getattr(settings, name):
            raise click.UsageError(f"--{name.replace('_', '-')} needs https: use --admin https://...")
    if settings.token_file and not ListenAddress(host, 0).is_loopback:
        raise click.UsageError(f"--token-file would go to {host} in plain text: use --admin https://...")


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--token-file {path}: {error}") from error
    if not token or not token.isprintable():
        raise click.UsageError(f"--token-file {path} holds no token")
    return token


def _place(admin: str) -> tuple[str, str, int]:
    """Scheme, host and port of the admin port; ``click.UsageError`` when ``admin`` names none."""
    wrong = click.UsageError(f"--admin {admin!r} is not an address such as http://127.0.0.1:18001")
    try:
        url = urlsplit(admin if "//" in admin else f"http://{admin}")
        host, port = url.hostname, url.port
    except ValueError as error:
        raise wrong from error
    if url.scheme not in ("http", "https") or not host:
        raise wrong
    return url.scheme, host, port or (443 if url.scheme == "https" else 80)
