"""``switchgear-agent``: run the agent, or tell a running one to drain.

``run`` (also without the word) prints one line of JSON with its ports when both listen. ``drain`` is made for a
``preStop`` hook: it comes back when the engine is drained, or at the deadline. Exit codes: 0 yes, 1 the answer is
no, 2 asked wrongly or nobody there, 70 a bug.
"""

import argparse
import asyncio
import http.client
import json
import logging
import os
import ssl
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from engine.agent.agent_config import (
    ENVIRONMENT_PREFIX,
    AgentConfig,
    EngineUrl,
    agent_config,
    environment_variable,
    flag_name,
    format_default,
    parse_duration,
)
from engine.agent.config_error import AgentConfigError

CRASHED: Final = 70
"""Exit code after a bug (EX_SOFTWARE of sysexits.h)."""

_DEFAULT_AGENT: Final = "http://127.0.0.1:18011"
# The agent answers at the deadline; this much later something is wrong with the agent.
_ANSWER_SPARE_S: Final = 5.0


def entry() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Do what was asked; the exit code."""
    words = list(argv)
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        words.insert(0, "run")
    asked = parser().parse_args(words)
    if asked.command == "run":
        return _run(asked)
    return _tell(asked)


def parser() -> argparse.ArgumentParser:
    """What may be said on the command line."""
    made = argparse.ArgumentParser(
        prog="switchgear-agent", description="The process beside an engine that knows whether it produces tokens."
    )
    commands = made.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="judge the engine and tell whoever asks")
    run.add_argument(
        "--config", type=Path, metavar="FILE", help=f"settings as YAML [env: {ENVIRONMENT_PREFIX}CONFIG]"
    )
    for setting in fields(AgentConfig):
        text = (
            f"{setting.metadata['help']} [env: {environment_variable(setting)}; default: "
            f"{format_default(setting)}]"
        )
        said = run.add_argument(flag_name(setting), dest=setting.name, help=text.replace("%", "%%"))
        if isinstance(setting.default, bool):
            said.nargs, said.const = "?", "true"
    for name, text in (
        ("drain", "take the engine out of every proxy and wait until it is empty"),
        ("undrain", "let the engine take requests again"),
        ("report", "print what the agent knows"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--agent", default=_DEFAULT_AGENT, metavar="URL", help="(default: %(default)s)")
        command.add_argument("--ca", metavar="FILE", help="authorities of an agent that is asked by https")
        command.add_argument("--cert", metavar="FILE", help="certificate and key to show it")
        if name == "drain":
            command.add_argument("--deadline", default="30s", metavar="DURATION", help="(default: %(default)s)")
    return made


def _run(asked: argparse.Namespace) -> int:
    flags = {
        setting.name: getattr(asked, setting.name)
        for setting in fields(AgentConfig)
        if getattr(asked, setting.name) is not None
    }
    named = os.environ.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    file = asked.config or (Path(named) if named else None)
    try:
        config = agent_config(flags, file=file)
    except AgentConfigError as error:
        print(f"switchgear-agent: {error}", file=sys.stderr)  # noqa: T201 -- a remark for people
        return 2
    if "rich" not in sys.modules:
        # structlog takes rich along where it is installed, to colour tracebacks: 5 MB in each agent of a fleet.
        sys.modules["rich"] = None  # type: ignore[assignment]  # the import system's way to say: not there
    log = _log_to_stderr(config.log_format)
    try:
        # None of this is needed to ask for a drain, and a preStop hook should start at once.
        from engine.agent.agent import Agent, BoundPorts, startup_line  # noqa: PLC0415

        def announce(listening: BoundPorts) -> None:
            print(json.dumps(startup_line(listening, config)), flush=True)  # noqa: T201 -- the answer

        async def serve() -> None:
            await Agent(config).run(announce)

        asyncio.run(serve())
    except AgentConfigError as error:
        print(f"switchgear-agent: {error}", file=sys.stderr)  # noqa: T201 -- a remark for people
        return 2
    except Exception:
        log.exception("agent.crashed")
        return CRASHED
    return 0


def _tell(asked: argparse.Namespace) -> int:
    """Ask a running agent; its answer on stdout."""
    try:
        agent = EngineUrl.parse(asked.agent)
        deadline_s = parse_duration(asked.deadline) if asked.command == "drain" else 0.0
    except ValueError as error:
        print(f"switchgear-agent: {error}", file=sys.stderr)  # noqa: T201
        return 2
    method, path = ("GET", "/report") if asked.command == "report" else ("POST", f"/{asked.command}")
    if asked.command == "drain":
        path += f"?deadline={asked.deadline}"
    limit_s = deadline_s + _ANSWER_SPARE_S
    connection = http.client.HTTPConnection(agent.host, agent.port, timeout=limit_s)
    try:
        if agent.secure:
            context = ssl.create_default_context(cafile=asked.ca)
            if asked.cert:
                context.load_cert_chain(asked.cert)
            connection = http.client.HTTPSConnection(agent.host, agent.port, timeout=limit_s, context=context)
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read().decode()
    except OSError as error:
        print(f"switchgear-agent: no agent at {agent}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    finally:
        connection.close()
    if response.status != 200:
        print(f"switchgear-agent: {agent} says {response.status}: {body.strip()}", file=sys.stderr)  # noqa: T201
        return 2
    print(body.strip())  # noqa: T201 -- the answer
    return 0 if asked.command != "drain" or json.loads(body)["outcome"] == "drained" else 1


def _log_to_stderr(log_format: str) -> Any:
    """A logger to stderr, with one line per transition; what libraries say there too, from warnings upwards."""
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
