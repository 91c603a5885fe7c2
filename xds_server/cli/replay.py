"""``switchgear replay``: replay a recording under other policies, and compare the decisions."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from command_line.output_format import DATA, as_data, output_option
from policies.findings import PolicyErrors
from xds_server.cli.diagnostics import as_text, from_errors, printable
from xds_server.cli.policies_option import load_policies, policies_option
from xds_server.ledger.decision_recording import RecordingError
from xds_server.ledger.decision_replay import CeilingRange, EngineReplay, PoolReplay, ReplayReport, replay
from xds_server.model.text import age_text


@click.command(name="replay")
@click.argument("recording", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@policies_option("Policy file or folder to compare with, - for stdin; repeatable.", required=True)
@output_option()
def command(recording: Path, filename: tuple[Path, ...], output: str) -> int:
    """Replay RECORDING (of `switchgear serve --record`) under other policies.

    Compares the decisions of the recorded policies with those of the others. Calls stay as recorded: an engine
    that the others would have ejected still shows its failures.

    Exit code: 0 replayed, 1 the other policies have problems, 2 not a recording.
    """
    try:
        policies = load_policies(filename)
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        return 1
    try:
        report = replay(recording, policies)
    except RecordingError as error:
        raise click.ClickException(str(error)) from error
    if output in DATA:
        # Through JSON: YAML knows no enums.
        record = json.loads(json.dumps({**asdict(report), "same": report.same}))
        click.echo(as_data(record, output), nl=False)
    else:
        click.echo(printable("\n".join(_lines(report))))
    return 0


def _lines(report: ReplayReport) -> Iterator[str]:
    yield f"{report.rounds} rounds over {age_text(report.length_s)}: recorded policies -> other policies"
    for remark in report.remarks:
        yield f"note: {remark}"
    if report.same:
        yield "no difference: the other policies decide the same"
    for pool in report.pools:
        yield from _of_pool(pool)
    for engine in report.engines:
        if (engine.out_s, engine.left) != (engine.out_s_then, engine.left_then) or engine.out_s:
            yield _of_engine(engine)


def _of_pool(pool: PoolReplay) -> Iterator[str]:
    yield (
        f"pool {pool.pool}: admission limit {_range(pool.ceiling)} -> {_range(pool.ceiling_then)}; "
        f"refused (estimate) {pool.refused:.0f} -> {pool.refused_then:.0f}"
    )
    kinds = sorted({*pool.events, *pool.events_then})
    counts = ", ".join(f"{kind} {pool.events.get(kind, 0)} -> {pool.events_then.get(kind, 0)}" for kind in kinds)
    if counts:
        yield f"  events: {counts}"


def _of_engine(engine: EngineReplay) -> str:
    text = f"{engine.pool}/{engine.engine}: ejected {_out(engine.out_s, engine.left)} -> "
    text += _out(engine.out_s_then, engine.left_then)
    if engine.avoided or engine.moved:
        text += f"; {engine.avoided} failed calls avoided, {engine.moved} successful calls moved"
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
