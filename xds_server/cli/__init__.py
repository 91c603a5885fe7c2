"""The ``switchgear`` command: one module per subcommand, imported only when that subcommand runs.

``switchgear validate`` must answer in an editor's save hook, so it may not pay for gRPC and Envoy's messages.
Exit codes: 0 yes, 1 the answer is no, 2 asked wrongly. Answers go to stdout, remarks to stderr.
"""

import errno
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Where a subcommand lives, and its line in ``--help`` (kept here so that help imports nothing)."""

    module: str
    summary: str
    name: str = "command"


_COMMANDS: Final[Mapping[str, _Entry]] = MappingProxyType(
    {
        "status": _Entry(module="status", summary="Show each proxy and whether it has what it should."),
        "why": _Entry(module="why", summary="Say why an engine, a zone or a pool is as it is."),
        "get": _Entry(module="get", summary="Show engines, pools, zones, proxies, orders, events or shadow."),
        "eject": _Entry(module="orders", name="eject", summary="Take an engine out, for a time."),
        "drain": _Entry(module="orders", name="drain", summary="Give an engine nothing new, for a time."),
        "restore": _Entry(module="orders", name="restore", summary="End an order, or order an engine in."),
        "validate": _Entry(
            module="validate", summary="Judge policy files: every problem, with its place and a way out."
        ),
        "explain": _Entry(module="explain", summary="Explain a field or a code; with files, who set it to what."),
        "translate": _Entry(module="translate", summary="Print the exact Envoy resources a proxy would get."),
        "replay": _Entry(module="replay", summary="Decide a recording again, under other policies."),
        "schema": _Entry(module="schema", summary="Print the JSON Schema of policy files, for editors."),
        "serve": _Entry(module="serve", summary="Run the control plane."),
        "bootstrap": _Entry(module="bootstrap", summary="Print an Envoy bootstrap that connects here."),
    }
)

_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it
_ASKED_WRONGLY: Final = 2
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class _LazyGroup(click.Group):
    """A group that knows its subcommands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the same
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{entry.module}"), entry.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="switchgear", prog_name="switchgear")
def group() -> None:
    """Keep a fleet of vLLM engines serving, through Envoy, from policy files."""


def main(argv: Sequence[str]) -> int:
    """Run one subcommand and return its exit code: 0 yes, 1 the answer is no, 2 asked wrongly."""
    try:
        answer = group.main(args=list(argv), prog_name="switchgear", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return _ASKED_WRONGLY
    except click.ClickException as error:
        error.show()
        return _ASKED_WRONGLY
    except click.exceptions.Abort:
        return _INTERRUPTED
    except BrokenPipeError:
        _let_go_of_stdout()  # the reader (head, less) has seen enough
        return 0
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _let_go_of_stdout()
        click.echo(f"Error: the answer cannot be written: {error.strerror}", err=True)
        return _ASKED_WRONGLY
    return answer if isinstance(answer, int) else 0


def _let_go_of_stdout() -> None:
    """Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry() -> None:
    """The console script."""
    # gRPC's core writes a line of its own form to stderr for every peer that hangs up; it asks when imported.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(main(sys.argv[1:]))
