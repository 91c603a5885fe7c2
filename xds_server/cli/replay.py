"""``switchgear replay``: a recording decided again under other policies, and what would have been different."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from policies.findings import PolicyErrors
from policies.load import load
from xds_server.cli.diagnostics import as_text, from_errors, printable
from xds_server.ledger.decision_recording import RecordingError
from xds_server.ledger.decision_replay import CeilingRange, EngineReplay, PoolReplay, ReplayReport, replay
from xds_server.model.text import age_text


@click.command(name="replay")
@click.argument("recording", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--policies",
    "paths",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, exists=True),
    help="Folder or file with the other policies; may be given more than once.",
)
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(recording: Path, paths: tuple[Path, ...], output: str) -> int:
    """Decide what RECORDING (of `switchgear serve --record`) holds again, under other policies.

    Both are computed: what its own policies decide, and what the others would have. The calls stay those that
    were made: an engine that would have been out still shows the failures it had.

    Exit code: 0 when it was replayed, 1 when the other policies have problems, 2 when it is no recording.
    """
    try:
        policies = load(paths)
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        return 1
    try:
        report = replay(recording, policies)
    except RecordingError as error:
        raise click.ClickException(str(error)) from error
    if output == "json":
        click.echo(json.dumps({**asdict(report), "same": report.same}, indent=2, ensure_ascii=False))
    else:
        click.echo(printable("\n".join(_lines(report))))
    return 0


def _lines(report: ReplayReport) -> Iterator[str]:
    yield f"{report.rounds} rounds over {age_text(report.length_s)}, as recorded -> under the other policies"
    for remark in report.remarks:
        yield f"note: {remark}"
    if report.same:
        yield "no difference: the other policies would have decided the same"
    for pool in report.pools:
        yield from _of_pool(pool)
    for engine in report.engines:
        if (engine.out_s, engine.left) != (engine.out_s_then, engine.left_then) or engine.out_s:
            yield _of_engine(engine)


def _of_pool(pool: PoolReplay) -> Iterator[str]:
    yield (
        f"pool {pool.pool}: ceiling {_range(pool.ceiling)} -> {_range(pool.ceiling_then)}; "
        f"refused about {pool.refused:.0f} -> {pool.refused_then:.0f}"
    )
    kinds = sorted({*pool.events, *pool.events_then})
    told = ", ".join(f"{kind} {pool.events.get(kind, 0)} -> {pool.events_then.get(kind, 0)}" for kind in kinds)
    if told:
        yield f"  events: {told}"


def _of_engine(engine: EngineReplay) -> str:
    text = f"{engine.pool}/{engine.engine}: out {_out(engine.out_s, engine.left)} -> "
    text += _out(engine.out_s_then, engine.left_then)
    if engine.avoided or engine.moved:
        text += f"; {engine.avoided} failed calls avoided, {engine.moved} good ones moved elsewhere"
    return text


def _out(out_s: float | None, left: int) -> str:
    if out_s is None:
        return "(not declared)"
    return f"{age_text(out_s)} ({left} time{'' if left == 1 else 's'})" if left else "never"


def _range(ceiling: CeilingRange | None) -> str:
    if ceiling is None:
        return "none"
    if ceiling.least == ceiling.most:
        return f"{ceiling.most:g}"
    return f"{ceiling.least:g} to {ceiling.most:g} (mean {ceiling.mean:g})"
