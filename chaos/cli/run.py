"""``switchgear-chaos run``: run scenarios against policies, and compare subjects."""

import click

from chaos.cli.experiment_series import run_rehearsal
from chaos.cli.rehearsal_options import RehearsalOptions, rehearsal_options
from chaos.cli.verdict_outputs import VerdictOutputs


@click.command(name="run")
@rehearsal_options
def command(*, rehearsal: RehearsalOptions, outputs: VerdictOutputs) -> int:
    """Run each SCENARIO (a file, a folder, or a name of the library) with real Envoys, and print the verdict.

    Presets are Envoys without a control plane: envoy (no retries), naive (five retries), tuned (by hand) and
    static (hand-set admission limit). All subjects of a scenario get the same engines, arrivals and faults.

    Exit code: 0 every promise held, 1 one was broken, 2 usage error or cannot run, 3 unknown. Subjects of
    --against do not count.
    """
    return run_rehearsal(rehearsal.experiment_tasks, rehearsal.out, outputs, lambda: rehearsal.baseline_names)
