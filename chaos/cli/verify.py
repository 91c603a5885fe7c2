"""``switchgear-chaos verify``: may these policies ship? The gate of a CI pipeline."""

from collections.abc import Sequence
from pathlib import Path

import click

from chaos.cli.experiment_series import ExperimentTask, experiment_tasks, run_rehearsal
from chaos.cli.rehearsal_options import OUT, POOL, SEED
from chaos.cli.verdict_outputs import VerdictOutputs, output_options
from chaos.scenario.scenario_library import QUICK, SUITES, suite
from chaos.scenario.scenario_reader import LoadedScenario
from chaos.testbed.subjects import PolicySubject, policy_sets
from policies.findings import did_you_mean


@click.command(name="verify")
@click.option(
    "--policies",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file or folder of policies; may be repeated.",
)
@click.option("--suite", "suite_name", type=click.Choice(SUITES), default=QUICK, show_default=True)
@click.option(
    "--leave-out",
    multiple=True,
    metavar="SCENARIO",
    help="Of the suite, one that cannot be done here; nothing is shown of it. May be repeated.",
)
@POOL
@SEED
@OUT
@output_options
def command(
    *,
    policies: tuple[Path, ...],
    suite_name: str,
    leave_out: tuple[str, ...],
    pool: str | None,
    seed: int | None,
    out: Path | None,
    outputs: VerdictOutputs,
) -> int:
    """Judge policies by a suite of scenarios: quick, standard or full.

    For each policy set quick takes half a minute, standard a quarter of an hour, and full, which is the whole
    library, half an hour. Files that contradict each other although each is complete in itself, as a folder of
    examples, are judged one by one. A scenario that needs more than this machine has (a C compiler for broken
    GPUs, root for lost packets on some kernels) is refused before anything is run.

    Exits 0 when every promise held, 1 when one was broken, 2 when asked wrongly, 3 when that is not known.
    """

    def some() -> list[ExperimentTask]:
        sets = policy_sets(policies)
        scenarios = _left(suite(suite_name), leave_out)
        return [
            task
            for one in sets
            for task in experiment_tasks(
                scenarios,
                [PolicySubject(name=one.name, policies=one.policies, pool=pool)],
                seed=seed,
                folder=out,
            )
        ]

    return run_rehearsal(some, out, outputs)


def _left(scenarios: Sequence[LoadedScenario], left_out: Sequence[str]) -> tuple[LoadedScenario, ...]:
    """Those of the suite that are not left out; some must be left, and a name must be one of them."""
    known = {one.name for one in scenarios}
    for name in left_out:
        if name not in known:
            hint = did_you_mean(name, known)
            raise click.UsageError(
                f"--leave-out {name}: the suite has no such scenario{f'; {hint}' if hint else ''}"
            )
    left = tuple(one for one in scenarios if one.name not in left_out)
    if not left:
        raise click.UsageError("--leave-out leaves nothing of the suite")
    return left
