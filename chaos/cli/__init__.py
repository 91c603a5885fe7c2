"""The ``switchgear-chaos`` command: one module per subcommand, imported only when that subcommand runs.

Exit codes: 0 the promise was kept, 1 it was not, 2 asked wrongly or could not run, 3 nobody can say.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import click

from command_line.group_runner import run_group, run_program
from command_line.lazy_group import LazyCommand, LazyGroup


def _entry(module: str, summary: str, name: str = "command") -> LazyCommand:
    return LazyCommand(module=f"{__name__}.{module}", summary=summary, name=name)


_COMMANDS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        "demo": _entry("demo", "See Switchgear beside plain Envoy while engines hang and crash."),
        "verify": _entry("verify", "Judge policies by a suite of scenarios, for a CI pipeline."),
        "run": _entry("run", "Run scenarios against policies, or several side by side."),
        "simulate": _entry("simulate", "Play scenarios in simulated time, on fleets of any size."),
        "check": _entry("check", "Judge a recorded history again."),
        "scenarios": _entry("scenarios", "List the scenarios of the library, and what each rehearses."),
        "faults": _entry("faults", "List the kinds of faults and their settings."),
        "schema": _entry("schema", "Print the JSON Schema of scenario files, for editors."),
        "export": _entry("export", "Write a scenario as Chaos Mesh or Litmus manifests."),
        "lab": _entry("lab", "Stand up a lab and hold it open, for experiments by hand."),
        "inject": _entry("inject", "Break something in a lab that is held open."),
    }
)


@click.group(cls=LazyGroup, entries=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="switchgear", prog_name="switchgear-chaos")
def group() -> None:
    """Break things on purpose, and judge how well they were kept going."""


def main(argv: Sequence[str]) -> int:
    """Run one subcommand and return its exit code."""
    return run_group(group, argv, "switchgear-chaos")


def entry() -> None:
    """The console script."""
    run_program(group, "switchgear-chaos")
