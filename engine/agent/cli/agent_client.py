"""Requests to a running agent, for ``status``, ``drain`` and ``undrain``."""

import functools
import http.client
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from command_line.https_connection import NamedHTTPSConnection, answers_plain, speaks_tls
from engine.agent.agent_config import EngineUrl, parse_duration

DEFAULT_AGENT: Final = "http://127.0.0.1:18011"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class NoAgentError(click.ClickException):
    """No agent answered as one; the message names the cause and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentClient:
    """Where the agent is, and how to authenticate; the options of ``agent_options``."""

    agent: EngineUrl
    cacert: Path | None
    cert: Path | None
    key: Path | None
    server_name: str | None
    timeout_s: float

    def request(self, method: str, path: str, *, wait_s: float = 0.0) -> dict[str, Any]:
        """The JSON object that the agent answers within ``wait_s`` and the timeout; ``NoAgentError`` otherwise."""
        agent, timeout_s = self.agent, wait_s + self.timeout_s
        connection = self._connection(timeout_s)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
        except (http.client.HTTPException, ConnectionResetError) as error:
            if not agent.secure and speaks_tls(agent.host, agent.port):
                address = str(agent).replace("http:", "https:", 1)
                raise NoAgentError(f"{agent}: the agent speaks TLS: use --agent {address}") from error
            raise NoAgentError(f"{agent} does not answer in HTTP: is it the agent's HTTP port?") from error
        except ssl.SSLError as error:
            if answers_plain(error):
                address = str(agent).replace("https:", "http:", 1)
                raise NoAgentError(f"{agent}: the agent speaks plain HTTP: use --agent {address}") from error
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise NoAgentError(f"{agent}: {reason}. See --cacert, --cert and --server-name") from error
        except TimeoutError as error:
            raise NoAgentError(f"no agent answers at {agent} within {timeout_s:g} s. See --timeout") from error
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise NoAgentError(f"no agent at {agent}: {reason}. Is `switchgear-agent run` running?") from error
        finally:
            connection.close()
        text = body.decode("utf-8", "replace")
        if response.status != http.client.OK:
            raise NoAgentError(f"{agent}{path} answered {response.status}: {text.strip() or response.reason}")
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise NoAgentError(f"{agent} does not answer as an agent: is it the agent's HTTP port?")
        return found

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        agent = self.agent
        if not agent.secure:
            for name in ("cacert", "cert", "key", "server_name"):
                if getattr(self, name):
                    flag = f"--{name.replace('_', '-')}"
                    raise click.UsageError(f"{flag} needs https: use --agent https://...")
            return http.client.HTTPConnection(agent.host, agent.port, timeout=timeout_s)
        try:
            tls = ssl.create_default_context(cafile=self.cacert)
            if self.cert:
                tls.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise click.UsageError(f"--cacert, --cert, --key: {error}") from error
        name = self.server_name or agent.host
        return NamedHTTPSConnection(agent.host, agent.port, name=name, timeout_s=timeout_s, context=tls)


def duration(text: str) -> float:
    """Parse a duration; seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error


def _agent_url(text: str) -> EngineUrl:
    try:
        return EngineUrl.parse(text if "//" in text else f"http://{text}")
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error


def agent_options(command: _Command) -> _Command:
    """Add the address of the agent and how to authenticate; the command gets ``client``."""
    file = click.Path(path_type=Path, dir_okay=False)
    options = (
        click.option(
            "--agent",
            type=_agent_url,
            metavar="URL",
            default=DEFAULT_AGENT,
            show_default=True,
            help="HTTP port of the agent.",
        ),
        click.option("--cacert", type=file, help="CA bundle that verifies the agent; the system's when absent."),
        click.option("--cert", type=file, help="Client certificate, PEM."),
        click.option("--key", type=file, help="Key of the client certificate; in the same file when absent."),
        click.option(
            "--server-name",
            metavar="NAME",
            help="DNS name that the agent's certificate must prove, if not the URL's.",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            type=duration,
            metavar="DURATION",
            default="5s",
            show_default=True,
            help="Timeout for each request to the agent.",
        ),
    )

    @functools.wraps(command)
    def wrapped(
        *,
        agent: EngineUrl,
        cacert: Path | None,
        cert: Path | None,
        key: Path | None,
        server_name: str | None,
        timeout_s: float,
        **rest: Any,
    ) -> Any:
        client = AgentClient(
            agent=agent, cacert=cacert, cert=cert, key=key, server_name=server_name, timeout_s=timeout_s
        )
        return command(client=client, **rest)

    decorated: Any = wrapped
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
