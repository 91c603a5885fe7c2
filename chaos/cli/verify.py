"""``switchgear-chaos verify``: check policies against a suite, as a gate in CI."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.text import Text

from chaos.cli.experiment_series import ExperimentTask, experiment_tasks, run_rehearsal
from chaos.cli.rehearsal_options import OUT, POOL, SEED
from chaos.cli.resource_names import complete_scenarios
from chaos.cli.verdict_outputs import VerdictOutputs, output_options
from chaos.scenario.scenario_library import QUICK, SUITES, suite
from chaos.scenario.scenario_reader import LoadedScenario
from chaos.testbed.blueprint import lab_blueprint
from chaos.testbed.caller_fit import lacking_limits
from chaos.testbed.policy_fit import MissingPoolError, PolicyFitError
from chaos.testbed.subjects import PolicySubject, policy_sets
from policies.findings import did_you_mean
from xds_server.cli.policies_option import policies_option


@click.command(name="verify")
@policies_option("Policies to check: file or folder, - for stdin. Repeatable.", required=True)
@click.option(
    "--suite",
    "suite_name",
    type=click.Choice(SUITES),
    default=QUICK,
    show_default=True,
    help="Suite of scenarios to run.",
)
@click.option(
    "--leave-out",
    multiple=True,
    metavar="SCENARIO",
    shell_complete=complete_scenarios,
    help="Skip this scenario of the suite. Repeatable.",
)
@POOL
@SEED
@OUT
@output_options
def command(
    *,
    filename: tuple[Path, ...],
    suite_name: str,
    leave_out: tuple[str, ...],
    pool: str | None,
    seed: int | None,
    out: Path | None,
    outputs: VerdictOutputs,
) -> int:
    """Check policies against a suite of scenarios: quick, standard or full.

    Per policy set, quick takes 30 s, standard 15 minutes and full (the whole library) 40 minutes. Files that are
    complete by themselves but contradict each other, such as a folder of examples, are checked one by one.
    Scenarios with more fallback pools or tenants than the policies are skipped, and those about deadlines or a
    prefill pool if the policies have none. A scenario that this machine cannot run is refused before anything
    starts: GPU faults need a C compiler, packet loss needs root on some kernels.

    Objectives of routes and pools (spec.objectives) must be kept too, in each scenario, from its first fault on:
    each is a check by itself, judged where a policy can keep it. Quick has no streams, which firstToken and
    betweenTokens are about.

    Exit code: 0 every promise held, 1 one was broken, 2 usage error or cannot run, 3 unknown.
    """

    def tasks() -> list[ExperimentTask]:
        subjects = [
            PolicySubject(name=one.name, policies=one.policies, pool=pool) for one in policy_sets(filename)
        ]
        scenarios = _remaining(suite(suite_name), leave_out)
        return [
            task
            for subject in subjects
            for task in experiment_tasks(
                _applicable(scenarios, subject, outputs), [subject], seed=seed, folder=out
            )
        ]

    return run_rehearsal(tasks, out, outputs)


def _applicable(
    scenarios: Sequence[LoadedScenario], subject: PolicySubject, outputs: VerdictOutputs
) -> tuple[LoadedScenario, ...]:
    """The scenarios without those that need what the policies do not have; says which."""
    found = []
    for one in scenarios:
        experiment = one.experiment()
        try:
            fitting = lab_blueprint(experiment, subject).fitting
        except MissingPoolError as problem:
            outputs.console.print(Text(f"skipped: {problem}"))
            continue
        except PolicyFitError:
            fitting = None  # reported when it runs
        lacking = "" if fitting is None else lacking_limits(experiment.spec.load, fitting.listener, fitting.routes)
        if lacking:
            outputs.console.print(Text(f"skipped: scenario {one.name} needs {lacking}"))
            continue
        found.append(one)
    return tuple(found)


def _remaining(scenarios: Sequence[LoadedScenario], left_out: Sequence[str]) -> tuple[LoadedScenario, ...]:
    """The suite without ``left_out``; usage error for an unknown name or an empty rest."""
    known = {one.name for one in scenarios}
    for name in left_out:
        if name not in known:
            hint = did_you_mean(name, known)
            raise click.UsageError(f"--leave-out {name}: not in this suite{f'; {hint}' if hint else ''}")
    left = tuple(one for one in scenarios if one.name not in left_out)
    if not left:
        raise click.UsageError("--leave-out removes every scenario of the suite")
    return left
