"""Options shared by subcommands: what to test, with which scenarios, and where to keep histories."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from chaos.cli.experiment_series import ExperimentTask, experiment_tasks
from chaos.cli.resource_names import complete_scenarios
from chaos.cli.verdict_outputs import VerdictOutputs, output_options
from chaos.scenario.scenario_library import chosen_scenarios
from chaos.testbed.subjects import STATICS, combined_subjects, subjects

_PRESETS: Final = ", ".join(STATICS)

# Text, not Path: ./naive is a folder, naive is the preset.
_SUBJECT: Final = partial(
    click.option,
    "--filename",
    "-f",
    multiple=True,
    type=click.Path(allow_dash=True),
    metavar="FILE|DIR|-|PRESET",
)
_TEXT: Final = f"Policies under test, or a preset Envoy without control plane ({_PRESETS}). Repeatable."
SUBJECT: Final = _SUBJECT(required=True, help=_TEXT)
OPTIONAL_SUBJECT: Final = _SUBJECT(help=f"{_TEXT} [default: policies of its own]")
AGAINST: Final = click.option(
    "--against",
    multiple=True,
    metavar="FILE|DIR|PRESET",
    type=click.Path(),
    help="Compare with these policies or this preset; does not change the exit code. Repeatable.",
)
POOL: Final = click.option("--pool", help="Pool under test. [default: the one with the largest route weight]")
SEED: Final = click.option("--seed", type=click.IntRange(min=0), help="Override the seed of each scenario.")
OUT: Final = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the histories to this folder.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOptions:
    """Scenarios to run with one subject, and with baselines."""

    scenarios: tuple[str, ...]
    filename: tuple[str, ...]
    against: tuple[str, ...]
    pool: str | None
    seed: int | None
    out: Path | None

    @property
    def baseline_names(self) -> frozenset[str]:
        """Names of the baselines; PolicyErrors if one is invalid."""
        return frozenset(one.name for one in subjects(self.against, self.pool))

    def experiment_tasks(self) -> tuple[ExperimentTask, ...]:
        """All experiments; raises PolicyErrors, PolicyFitError or RequestShapeError."""
        every = (*combined_subjects(self.filename, self.pool), *subjects(self.against, self.pool))
        return experiment_tasks(chosen_scenarios(self.scenarios), every, seed=self.seed, folder=self.out)


def rehearsal_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add SCENARIO, -f, --against, --pool, --seed, --out and the output options to a subcommand.

    Its function gets ``rehearsal`` and ``outputs``.
    """

    @functools.wraps(function)
    def wrapped(*, outputs: VerdictOutputs, **values: Any) -> int:
        return function(rehearsal=RehearsalOptions(**values), outputs=outputs)

    scenarios = click.argument(
        "scenarios", nargs=-1, required=True, metavar="SCENARIO...", shell_complete=complete_scenarios
    )
    subcommand = output_options(wrapped)
    for option in (OUT, SEED, POOL, AGAINST, SUBJECT, scenarios):
        subcommand = option(subcommand)
    return subcommand
