"""``switchgear-chaos run``: scenarios with policies, or with several side by side."""

import click

from chaos.cli.options import Rehearsal, rehearsal_options
from chaos.cli.outputs import Outputs
from chaos.cli.rehearsing import rehearsed


@click.command(name="run")
@rehearsal_options
def command(*, rehearsal: Rehearsal, outputs: Outputs) -> int:
    """Run each SCENARIO (a file, a folder, or a name of the library) with real Envoys, and judge what came of it.

    SUBJECT is a file or folder of policies, or an Envoy without a control plane: envoy (no retries), naive (five
    retries), tuned (by hand) or static (with a ceiling set by hand). All subjects of a scenario meet the same
    engines, the same arrivals and the same faults.

    Exits 0 when --policies kept every promise, 1 when they broke one, 2 when asked wrongly, 3 when that is not
    known; those --against do not count.
    """
    return rehearsed(rehearsal.tasks, rehearsal.out, outputs, lambda: rehearsal.beside)
