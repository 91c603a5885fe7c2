"""Asking a running server over its admin port: one option, and one way to say that it cannot be asked."""

import http.client
import json
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import click

from engine.address import ListenAddress
from policies.quantity import parse_duration
from xds_server.admin_api.endpoints import AdminEndpoint
from xds_server.admin_api.parse import ShapeError, parse

TIMEOUT_S: Final = 5.0
LEAST_S: Final = 0.1
LONGEST_S: Final = 600.0

_META: Final = "switchgear.credentials"
_T = TypeVar("_T")


def _kept(context: click.Context, option: click.Parameter, said: Any) -> None:
    """Keep what was said for ``request_json``: all commands that ask have these options, and none uses them."""
    context.meta.setdefault(_META, {})[option.name] = said


class _Patience(click.ParamType):  # type: ignore[type-arg]  # it takes none before click 8.4
    """A duration, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        try:
            patience_s = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not LEAST_S <= patience_s <= LONGEST_S:
            self.fail(f"{value} is not between {LEAST_S * 1000:g}ms and {LONGEST_S / 60:g}m", param, ctx)
        return patience_s


def admin_option(command: Any) -> Any:
    """The options of every command that asks a server: where it is, how long to wait, how to prove who asks."""
    command = click.option(
        "--timeout",
        type=_Patience(),
        metavar="DURATION",
        envvar="SWITCHGEAR_TIMEOUT",
        show_envvar=True,
        expose_value=False,
        callback=_kept,
        help=f"How long a server may be silent before it counts as not answering, {TIMEOUT_S:g}s when absent.",
    )(command)
    file = click.Path(path_type=Path, dir_okay=False)
    for name, kind, text in reversed(
        (
            ("cacert", file, "Authorities of a server that is asked by https; those of the system when absent."),
            ("cert", file, "Certificate to show it, PEM."),
            ("key", file, "Key of the certificate; in the same file when absent."),
            ("token-file", file, "File with the token to send it."),
            ("server-name", str, "DNS name that its certificate must prove, where that is not in the URL."),
        )
    ):
        command = click.option(
            f"--{name}",
            type=kind,
            envvar=f"SWITCHGEAR_ADMIN_{name.replace('-', '_').upper()}",
            show_envvar=True,
            expose_value=False,
            callback=_kept,
            help=text,
        )(command)
    return click.option(
        "--admin",
        default="http://127.0.0.1:18001",
        show_default=True,
        envvar="SWITCHGEAR_ADMIN_URL",
        metavar="URL",
        help="Admin port of the server.",
    )(command)


class NoAnswerError(click.ClickException):
    """Nobody answers as a Switchgear does. The question was well put, so its usage is not shown with it."""


class UnknownPathError(NoAnswerError):
    """It answers, and does not know the path: another server, or a Switchgear of before there was such a thing."""


class AdminApiError(click.ClickException):
    """The server understood and refused: its HTTP status, its own words, and all of its answer."""

    def __init__(self, status: int, message: str, answer: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.status = status
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAnswer(Generic[_T]):
    """An answer of the admin port: its type, and the JSON document as the server sent it."""

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
        raise NoAnswerError(f"{admin} broke off in the middle of its answer") from error
    except http.client.HTTPException as error:  # what it says instead may be binary
        raise NoAnswerError(_no_http(admin, error)) from error
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        raise NoAnswerError(f"{admin}: {reason}. See --cacert, --cert and --server-name") from error
    except TimeoutError as error:
        reason = "it hangs, is overloaded, or something on the way drops what is sent"
        told = f"no server answers at {admin} within {connection.timeout:g} s: {reason}. --timeout waits longer"
        raise NoAnswerError(told) from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise NoAnswerError(f"no server answers at {admin}: {reason}. Is `switchgear serve` running?") from error
    finally:
        connection.close()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        if answer.status >= http.client.INTERNAL_SERVER_ERROR:
            fault = "a fault of the server, which its log tells, or of what stands before it"
            raise NoAnswerError(f"{admin}{path} answered {answer.status} {answer.reason}: {fault}") from error
        raise NoAnswerError(_not_ours(admin)) from error
    if answer.status in (http.client.OK, http.client.CREATED):
        if not isinstance(found, dict):
            raise NoAnswerError(_not_ours(admin))
        return found
    said = found.get("error") if isinstance(found, dict) else None
    # What the server says of a path it does not have begins with the method, as in "GET /v1/why: Not Found".
    if not isinstance(said, str) or said.startswith(f"{method} "):
        kind = UnknownPathError if answer.status == http.client.NOT_FOUND else NoAnswerError
        raise kind(f"{admin}{path} answered {answer.status}: is it the --admin port of a Switchgear?")
    raise AdminApiError(answer.status, said, found)


def _no_http(admin: str, error: http.client.HTTPException) -> str:
    """What to say of whoever speaks no HTTP."""
    # A server that refuses a certificate hangs up: by then a handshake of TLS 1.3 is over on this side.
    if isinstance(error, http.client.RemoteDisconnected) and admin.startswith("https:"):
        return f"{admin} hung up without an answer: has the certificate ended, or does it take another? See --cert"
    return f"{admin} answers, but not in HTTP: is it the --admin port?"


def _not_ours(admin: str) -> str:
    """The error for a server that is no Switchgear, or one of another version."""
    return f"{admin} answers, but not as Switchgear does: is it the --admin port, and of a like version?"


def admin_connection(
    admin: str, *, timeout_s: float | None = None
) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    """A connection to the admin port that is not made yet, and the headers that say who is asking.

    By what the options of ``admin_option`` say; ``click.UsageError`` where they cannot be used.
    """
    context = click.get_current_context(silent=True)
    said: dict[str, Any] = {} if context is None else context.meta.get(_META, {})
    timeout_s = timeout_s or said.get("timeout") or TIMEOUT_S
    scheme, host, port = _place(admin)
    if scheme == "http":
        _plain(host, said)
    headers = {}
    if token_file := said.get("token_file"):
        headers["Authorization"] = f"Bearer {_token(token_file)}"
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=timeout_s), headers
    try:
        tls = ssl.create_default_context(cafile=said.get("cacert"))
        if certificate := said.get("cert"):
            tls.load_cert_chain(certificate, said.get("key"))
    except (OSError, ssl.SSLError) as error:
        raise click.UsageError(f"--cacert, --cert, --key: {error}") from error
    name = said.get("server_name")
    return _Named(host, port, name=name or host, timeout_s=timeout_s, context=tls), headers


def _plain(host: str, said: dict[str, Any]) -> None:
    """``click.UsageError`` where plain text would ignore what was said of TLS, or send a token over a network."""
    for name in ("cacert", "cert", "key", "server_name"):
        if said.get(name):
            raise click.UsageError(
                f"--{name.replace('_', '-')} is for https, and --admin is http: write https://..."
            )
    if said.get("token_file") and not ListenAddress(host, 0).is_loopback:
        raise click.UsageError(f"--token-file would go to {host} in plain text: write --admin https://...")


class _Named(http.client.HTTPSConnection):
    """A connection to one address whose certificate must prove another name."""

    def __init__(self, host: str, port: int, *, name: str, timeout_s: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._name = name
        self._tls = context

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self._name)
        except BaseException:
            plain.close()
            raise


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
