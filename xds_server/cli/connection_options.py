"""The global options: which server a command talks to, and how it proves who asks.

Each value comes from the first of: its flag, the context that ``--context`` names, its environment variable, the
current context of the context file, its default. Certificates and tokens of a context go to its own server only:
where ``--admin`` or ``SWITCHGEAR_ADMIN_URL`` names a server, the current context adds its timeout alone.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from command_line.global_option import GlobalOption

DEFAULT_ADMIN: Final = "http://127.0.0.1:18001"
TIMEOUT_S: Final = 5.0
LEAST_S: Final = 0.1
LONGEST_S: Final = 600.0

META: Final = "switchgear.connection"
"""Key of the flags in a click context's ``meta``, which parents and children share."""

_FILE_META: Final = "switchgear.context-file"
_CREDENTIALS: Final = ("cacert", "cert", "key", "token_file", "server_name")
_PATHS: Final = ("cacert", "cert", "key", "token_file")
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Where the server is and how to talk to it."""

    admin: str = DEFAULT_ADMIN
    cacert: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token_file: Path | None = None
    server_name: str = ""
    timeout_s: float = TIMEOUT_S


class Timeout(click.ParamType):  # type: ignore[type-arg]  # it takes none before click 8.4
    """A duration, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        from policies.quantity import parse_duration  # noqa: PLC0415 - pydantic, which --help does not need

        try:
            timeout_s = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not LEAST_S <= timeout_s <= LONGEST_S:
            self.fail(f"{value} is not between {LEAST_S * 1000:g}ms and {LONGEST_S / 60:g}m", param, ctx)
        return timeout_s


def environment_variable(name: str) -> str:
    """The variable of a global option, named as in ``ConnectionSettings``."""
    special = {
        "admin": "SWITCHGEAR_ADMIN_URL",
        "timeout": "SWITCHGEAR_TIMEOUT",
        "context": "SWITCHGEAR_CONTEXT",
        "config": "SWITCHGEAR_CONFIG",
    }
    return special.get(name) or f"SWITCHGEAR_ADMIN_{name.upper()}"


def _complete_contexts(context: click.Context, _option: click.Parameter, begin: str) -> list[CompletionItem]:
    try:
        with context.scope(cleanup=False):
            return [CompletionItem(one) for one in context_file().contexts if one.startswith(begin)]
    except click.ClickException:
        return []


def _table() -> tuple[tuple[str, Any, str, str], ...]:
    """Name, type, metavar and help of each option, in the order of ``switchgear options``."""
    file = click.Path(path_type=Path, dir_okay=False)
    return (
        ("admin", str, "URL", f"Admin port of the server.  [default: {DEFAULT_ADMIN}]"),
        ("cacert", file, "FILE", "CA bundle that verifies the server; the system's when absent."),
        ("cert", file, "FILE", "Client certificate, PEM."),
        ("key", file, "FILE", "Key of the client certificate; in the same file when absent."),
        ("token-file", file, "FILE", "File with the bearer token."),
        ("server-name", str, "NAME", "DNS name that the server's certificate must prove, if not the URL's."),
        ("timeout", Timeout(), "DURATION", f"Timeout for each request to the server.  [default: {TIMEOUT_S:g}s]"),
        ("context", str, "NAME", "Context to use; see `switchgear config`."),
        ("config", file, "FILE", "Context file.  [default: ~/.config/switchgear/config.yaml]"),
    )


def _settings(name: str, kind: Any, metavar: str, text: str) -> dict[str, Any]:
    return {
        "type": kind,
        "metavar": metavar,
        "expose_value": False,
        "callback": _keep,
        "shell_complete": _complete_contexts if name == "context" else None,
        "help": f"{text}  [env var: {environment_variable(name.replace('-', '_'))}]",
    }


def global_options() -> list[click.Parameter]:
    """The options as the group takes them, before a command; ``connection_settings`` has their values."""
    return [GlobalOption([f"--{name}"], **_settings(name, *rest)) for name, *rest in _table()]


def connection_options(command: _Command) -> _Command:
    """Accept the global options behind the command, which gets ``admin``, the URL of the server."""
    for name, *rest in reversed(_table()):
        settings = _settings(name, *rest)
        if name == "admin":
            settings |= {"expose_value": True, "callback": _admin}
        command = click.option(f"--{name}", cls=GlobalOption, **settings)(command)
    return command


def _keep(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Keep a flag for ``connection_settings``; behind the command it wins over one before."""
    if value is not None:
        context.meta.setdefault(META, {})[option.name] = value
    return value


def _admin(context: click.Context, option: click.Parameter, value: Any) -> str:
    _keep(context, option, value)
    try:
        with context.scope(cleanup=False):
            return connection_settings().admin
    except click.ClickException:
        if context.resilient_parsing:  # completion
            return DEFAULT_ADMIN
        raise


def _flags() -> Mapping[str, Any]:
    context = click.get_current_context(silent=True)
    found: Mapping[str, Any] = {} if context is None else context.meta.get(META, {})
    return found


def context_path() -> Path:
    """The context file that is in force."""
    from xds_server.cli.context_file import default_path  # noqa: PLC0415 - reads YAML

    return _flags().get("config") or Path(os.environ.get("SWITCHGEAR_CONFIG") or default_path())


def context_file(*, required: bool = False) -> Any:
    """The context file, read once for each command; a ``ContextFile``."""
    from xds_server.cli.context_file import read_context_file  # noqa: PLC0415 - reads YAML

    context = click.get_current_context(silent=True)
    kept: dict[Path, Any] = {} if context is None else context.meta.setdefault(_FILE_META, {})
    path = context_path()
    if path not in kept:
        kept[path] = read_context_file(path, required=required)
    return kept[path]


def context_name() -> str:
    """The context in force, of ``--context``, ``SWITCHGEAR_CONTEXT`` or the file; empty where none is set."""
    return str(_flags().get("context") or os.environ.get("SWITCHGEAR_CONTEXT") or context_file().current)


def connection_settings() -> ConnectionSettings:
    """What flags, contexts and environment say; ``click.ClickException`` where that cannot be used."""
    flags, named = _flags(), _context_values()
    environment = {
        name: value
        for name in ("admin", *_CREDENTIALS, "timeout")
        if (value := os.environ.get(environment_variable(name)))
    }
    explicit = bool(flags.get("context"))
    if explicit and "admin" in named:
        environment = {name: value for name, value in environment.items() if name == "timeout"}
    if not explicit and ("admin" in flags or "admin" in environment):
        named = {name: value for name, value in named.items() if name == "timeout"}
    sources = (flags, named, environment) if explicit else (flags, environment, named)
    found = {name: value for source in reversed(sources) for name, value in source.items()}
    found = {name: found[name] for name in ("admin", *_CREDENTIALS, "timeout") if name in found}
    for name in _PATHS:
        if name in found:
            found[name] = Path(found[name])
    timeout = found.pop("timeout", None)
    if timeout is not None:
        found["timeout_s"] = timeout if isinstance(timeout, float) else _parsed_timeout(str(timeout), environment)
    return ConnectionSettings(**found)


def _context_values() -> Mapping[str, Any]:
    """The values of the context in force, by option; none where no file names one."""
    flags = _flags()
    named = flags.get("context") or os.environ.get("SWITCHGEAR_CONTEXT")
    if not named and "config" not in flags and not context_path().exists():
        return {}
    from xds_server.cli.context_file import FIELDS, PATHS  # noqa: PLC0415 - reads YAML

    file, name = context_file(required="config" in flags), context_name()
    if not name:
        return {}
    folder = file.path.parent
    return {
        FIELDS[key]: folder / Path(value).expanduser() if key in PATHS else value
        for key, value in file.context(name).items()
        if value
    }


def _parsed_timeout(text: str, environment: Mapping[str, Any]) -> float:
    source = "SWITCHGEAR_TIMEOUT" if environment.get("timeout") == text else f"{context_path()}: timeout"
    try:
        return Timeout().convert(text, None, None)
    except click.BadParameter as error:
        raise click.UsageError(f"{source}: {error.message}") from error
