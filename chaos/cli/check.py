"""``switchgear-chaos check``: recompute the verdict of a recorded history."""

from pathlib import Path

import click

from chaos.checks.experiment_verdict import verdict
from chaos.cli.verdict_outputs import VerdictOutputs, output_options, prepare_outputs, write_verdicts
from chaos.history.event_codec import HistoryError
from chaos.history.history_reader import read_history


@click.command(name="check")
@click.argument("histories", nargs=-1, required=True, metavar="HISTORY...", type=click.Path(path_type=Path))
@output_options
def command(*, histories: tuple[Path, ...], outputs: VerdictOutputs) -> int:
    """Recompute the verdict of each HISTORY: a file that `run --out` or `verify --out` wrote, or a folder of them.

    Exit code: 0 every promise held, 1 one was broken, 2 not a history, 3 unknown.
    """
    prepare_outputs(None, outputs)
    try:
        verdicts = [verdict(read_history(path)) for path in _files(histories)]
    except HistoryError as problem:
        raise click.ClickException(str(problem)) from problem
    return write_verdicts(verdicts, outputs)


def _files(paths: tuple[Path, ...]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise click.ClickException(f"{path}: no history (*.jsonl) in this folder")
        found += inside
    return found
