"""``switchgear-chaos run``: scenarios with policies, or with several side by side."""

import click

from chaos.cli.experiment_series import run_rehearsal
from chaos.cli.rehearsal_options import RehearsalOptions, rehearsal_options
from chaos.cli.verdict_outputs import VerdictOutputs


@click.command(name="run")
@rehearsal_options
def command(*, rehearsal: RehearsalOptions, outputs: VerdictOutputs) -> int:
    """Run each SCENARIO (a file, a folder, or a name of the library) with real Envoys, and judge what came of it.

    SUBJECT is a file or folder of policies, or an Envoy without a control plane: envoy (no retries), naive (five
    retries), tuned (by hand) or static (with a ceiling set by hand). All subjects of a scenario meet the same
    engines, the same arrivals and the same faults.

    Exits 0 when --policies kept every promise, 1 when they broke one, 2 when asked wrongly, 3 when that is not
    known; those --against do not count.
    """
    return run_rehearsal(rehearsal.experiment_tasks, rehearsal.out, outputs, lambda: rehearsal.baseline_names)
