"""``switchgear-agent run``: the agent itself, until SIGTERM.

One line of JSON on stdout names its ports when both listen.
"""

import asyncio
import json
import logging
import os
import sys
import typing
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final, Literal

import click
from click.shell_completion import CompletionItem

from engine.agent.agent_config import (
    ENVIRONMENT_PREFIX,
    AgentConfig,
    agent_config,
    environment_variable,
    flag_name,
    format_default,
)
from engine.agent.config_error import AgentConfigError
from engine.allocator import limit_arenas

CRASHED: Final = 70
"""Exit code after a bug (EX_SOFTWARE of sysexits.h)."""


def _options() -> list[click.Parameter]:
    hints = typing.get_type_hints(AgentConfig)
    return [_option(setting, hints[setting.name]) for setting in fields(AgentConfig)]


def _option(setting: "Field[Any]", hint: Any) -> click.Option:
    """The flag of a setting; its text is parsed by ``agent_config``, which names every invalid value at once."""
    values = ("true", "false") if hint is bool else typing.get_args(hint) if _is_choice(hint) else ()
    text = f"{setting.metadata['help']} [env: {environment_variable(setting)}; default: {format_default(setting)}]"

    def complete(_context: click.Context, _option: click.Parameter, begin: str) -> list[CompletionItem]:
        return [CompletionItem(one) for one in values if one.startswith(begin)]

    # A switch may stand alone (--insecure). With a flag_value, click takes no value that starts with "-".
    standalone: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if hint is bool else {}
    return click.Option(
        [flag_name(setting), setting.name],
        help=text,
        metavar="|".join(values) or _metavar(setting, hint),
        shell_complete=complete if values else None,
        **standalone,
    )


def _is_choice(hint: Any) -> bool:
    return typing.get_origin(hint) is Literal


def _metavar(setting: "Field[Any]", hint: Any) -> str:
    if setting.name.endswith("_s"):
        return "DURATION"
    if typing.get_origin(hint) is tuple:
        return "LIST"
    name = getattr(hint, "__name__", "")
    return {"int": "INTEGER", "float": "NUMBER", "EngineUrl": "URL", "ListenAddress": "HOST:PORT"}.get(
        name, "TEXT"
    )


def _run(*, config: Path | None, **settings: str | None) -> int:
    """Run the agent: watch the engine, answer probes, and report to control planes.

    A flag overrides the environment, which overrides the file of --config. Flags without a command are those of
    `run`. The first line on stdout is JSON with the ports. SIGTERM drains the engine first.

    Exit code: 0 stopped, 2 invalid setting, 70 a bug.
    """
    flags = {name: value for name, value in settings.items() if value is not None}
    named = os.environ.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    file = config or (Path(named) if named else None)
    try:
        effective = agent_config(flags, file=file)
    except AgentConfigError as error:
        raise click.ClickException(str(error)) from error
    if "rich" not in sys.modules:
        # structlog imports rich where it is installed, to colour tracebacks: 5 MB in each agent of a fleet.
        sys.modules["rich"] = None  # type: ignore[assignment]  # makes the import fail
    log = _log_to_stderr(effective.log_format)
    try:
        # --help and completion need none of this.
        from engine.agent.agent import Agent, BoundPorts, startup_line  # noqa: PLC0415

        def announce(listening: BoundPorts) -> None:
            click.echo(json.dumps(startup_line(listening, effective)))

        async def serve() -> None:
            await Agent(effective).run(announce)

        limit_arenas()
        asyncio.run(serve())
    except AgentConfigError as error:
        raise click.ClickException(str(error)) from error
    except Exception:
        log.exception("agent.crashed")
        return CRASHED
    return 0


command = click.Command(
    "run",
    callback=_run,
    params=[
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help=f"Settings as YAML. [env: {ENVIRONMENT_PREFIX}CONFIG]",
        ),
        *_options(),
    ],
    help=_run.__doc__,
)


def _log_to_stderr(log_format: str) -> Any:
    """A logger to stderr with one line per transition; libraries log there from warnings upwards."""
    import structlog  # noqa: PLC0415

    rendered = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            rendered,
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,  # module-level loggers follow a later configure
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    return structlog.get_logger()
