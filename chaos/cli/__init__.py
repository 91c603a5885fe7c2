"""The ``switchgear-chaos`` command: one module per subcommand, imported only when that subcommand runs.

Exit codes: 0 every promise held, 1 one was broken, 2 usage error or cannot run, 3 unknown, 130 Ctrl-C.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import click

from command_line.group_runner import run_group, run_program
from command_line.lazy_group import LazyCommand, LazyGroup

PROGRAM: Final = "switchgear-chaos"


def _entry(module: str, summary: str, name: str = "command") -> LazyCommand:
    return LazyCommand(module=f"{__name__}.{module}", summary=summary, name=name)


_COMMANDS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        "demo": _entry("demo", "Compare Switchgear with plain Envoy while engines hang and crash."),
        "verify": _entry("verify", "Check policies against a suite of scenarios, for CI."),
        "run": _entry("run", "Run scenarios against policies, with real Envoys."),
        "simulate": _entry("simulate", "Run scenarios in simulated time, on fleets of any size."),
        "check": _entry("check", "Recompute the verdict of a recorded history."),
        "get": _entry("get", "List scenarios or faults."),
        "describe": _entry("describe", "Show a scenario or a fault in detail."),
        "schema": _entry("schema", "Print the JSON Schema of scenario files, for editors."),
        "export": _entry("export", "Convert scenarios to Chaos Mesh or Litmus manifests."),
        "lab": _entry("lab", "Start a lab and keep it running, for manual experiments."),
        "engine": _entry("engine", "Start a stand-in for vLLM, without a GPU."),
        "inject": _entry("inject", "Inject a fault into a running lab."),
        "completion": _entry("completion", "Print the completion script for a shell."),
        "version": _entry("version", "Show the version."),
    }
)


@click.group(cls=LazyGroup, entries=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="switchgear", prog_name=PROGRAM)
def group() -> None:
    """Inject faults, and check that policies keep their promises."""


def main(argv: Sequence[str]) -> int:
    """Run one subcommand and return its exit code."""
    return run_group(group, argv, PROGRAM)


def entry() -> None:
    """The console script, without the guard of ``chaos.cli.__main__`` against Ctrl-C while importing."""
    run_program(group, PROGRAM)
