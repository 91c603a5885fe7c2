"""``switchgear-chaos run``: scenarios with policies, or with several side by side."""

from pathlib import Path

import click

from chaos.cli.complaining import refused
from chaos.cli.destinations import prepare
from chaos.cli.options import AGAINST, OUT, POOL, SEED, SUBJECT
from chaos.cli.outputs import Outputs, output_options, told
from chaos.cli.series import InterruptedRunError, done, tasks
from chaos.fitting.fit import FittingError
from chaos.fitting.shaping import ShapeError
from chaos.fitting.subjects import subjects
from chaos.scenario.library import chosen
from policies.findings import PolicyErrors


@click.command(name="run")
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...")
@SUBJECT
@AGAINST
@POOL
@SEED
@OUT
@output_options
def command(
    *,
    scenarios: tuple[str, ...],
    policies: str,
    against: tuple[str, ...],
    pool: str | None,
    seed: int | None,
    out: Path | None,
    as_json: bool,
    junit: Path | None,
    html: Path | None,
) -> int:
    """Run each SCENARIO (a file, a folder, or a name of the library) with real Envoys, and judge what came of it.

    SUBJECT is a file or folder of policies, or an Envoy without a control plane: envoy (no retries), naive (five
    retries), tuned (by hand) or static (with a ceiling set by hand). All subjects of a scenario meet the same
    engines, the same arrivals and the same faults.

    Exits 0 when --policies kept every promise, 1 when they broke one, 2 when asked wrongly, 3 when that is not
    known; those --against do not count.
    """
    outputs = Outputs(as_json=as_json, junit=junit, html=html)
    try:
        judged, beside = subjects([policies], pool), subjects(against, pool)
        some = tasks(chosen(scenarios), [*judged, *beside], seed=seed, folder=out)
        prepare(out, outputs)
        verdicts = done(some, outputs.console)
    except PolicyErrors as errors:
        return refused(errors)
    except (FittingError, ShapeError) as problem:
        raise click.ClickException(str(problem)) from problem
    except InterruptedRunError as interrupted:
        return interrupted.exit_code
    return told(verdicts, outputs, {one.name for one in beside})
