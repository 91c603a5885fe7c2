"""The ``switchgear-agent`` command: one module per subcommand, imported only when that subcommand runs.

A ``preStop`` hook that drains must start at once, and a running agent must not hold memory for other subcommands.
click itself costs 1.4 MB of the 37 MB that an idle agent holds (RssAnon).
Exit codes: 0 yes, 1 the answer is no, 2 usage error or no agent, 70 a bug, 130 Ctrl-C.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import click

from command_line.group_runner import run_group, run_program
from command_line.lazy_group import LazyCommand, LazyGroup

PROGRAM: Final = "switchgear-agent"


def _entry(module: str, summary: str, name: str = "command") -> LazyCommand:
    return LazyCommand(module=f"{__name__}.{module}", summary=summary, name=name)


_COMMANDS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        "run": _entry("run", "Run the agent (the default command)."),
        "status": _entry("status", "Show the verdict of a running agent, and its evidence."),
        "drain": _entry("drain", "Drain the engine and wait until it is empty.", name="drain"),
        "undrain": _entry("drain", "Return a draining engine to rotation.", name="undrain"),
        "completion": _entry("completion", "Print the completion script for a shell."),
        "version": _entry("version", "Show the version."),
    }
)
_OWN_FLAGS: Final = frozenset({"-h", "--help", "--version"})


class _AgentGroup(LazyGroup):
    """Flags without a command are those of ``run``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in _OWN_FLAGS:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_AgentGroup, entries=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="switchgear", prog_name=PROGRAM)
def group() -> None:
    """Watch an engine from its own machine, and report whether it produces tokens."""


def main(argv: Sequence[str]) -> int:
    """Run one subcommand and return its exit code."""
    return run_group(group, argv, PROGRAM)


def entry() -> None:
    """The console script, without the guard of ``engine.agent.__main__`` against Ctrl-C while importing."""
    run_program(group, PROGRAM)
