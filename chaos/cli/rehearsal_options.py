"""Options that several subcommands have, and what they come to: whom to judge, with what, and where to keep it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from chaos.cli.experiment_series import ExperimentTask, experiment_tasks
from chaos.cli.verdict_outputs import VerdictOutputs, output_options
from chaos.scenario.scenario_library import chosen_scenarios
from chaos.testbed.subjects import subjects

SUBJECT: Final = click.option(
    "--policies", required=True, metavar="SUBJECT", help="A file or folder of policies, or a static Envoy."
)
AGAINST: Final = click.option(
    "--against", multiple=True, metavar="SUBJECT", help="Another one, to stand beside it; may be repeated."
)
POOL: Final = click.option("--pool", help="The pool under test; else the one that routes send most to.")
SEED: Final = click.option("--seed", type=click.IntRange(min=0), help="Instead of that of each scenario.")
OUT: Final = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Keep the histories in this folder."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOptions:
    """Scenarios to do with one subject, and with those that stand beside it."""

    scenarios: tuple[str, ...]
    policies: str
    against: tuple[str, ...]
    pool: str | None
    seed: int | None
    out: Path | None

    @property
    def baseline_names(self) -> frozenset[str]:
        """The names of those that stand beside; PolicyErrors where one is wrong."""
        return frozenset(one.name for one in subjects(self.against, self.pool))

    def experiment_tasks(self) -> tuple[ExperimentTask, ...]:
        """All experiments; raises PolicyErrors, FittingError or ShapeError for what cannot be rehearsed."""
        everyone = subjects([self.policies, *self.against], self.pool)
        return experiment_tasks(chosen_scenarios(self.scenarios), everyone, seed=self.seed, folder=self.out)


def rehearsal_options(function: Callable[..., int]) -> Callable[..., int]:
    """Gives a subcommand SCENARIO, --policies, --against, --pool, --seed, --out and the forms of the answer.

    Its function gets one ``rehearsal`` and one ``outputs``.
    """

    @functools.wraps(function)
    def taken(*, outputs: VerdictOutputs, **asked: Any) -> int:
        return function(rehearsal=RehearsalOptions(**asked), outputs=outputs)

    scenarios = click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...")
    subcommand = output_options(taken)
    for option in (OUT, SEED, POOL, AGAINST, SUBJECT, scenarios):
        subcommand = option(subcommand)
    return subcommand
