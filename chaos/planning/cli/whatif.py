"""``switchgear plan whatif``: a pool before and after a change."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from chaos.planning.cli import plan_options
from chaos.planning.cli.plan_answer import (
    AnswerGrid,
    PlanAnswer,
    number,
    objectives_grid,
    objectives_notes,
    percent,
    plot_path,
    print_answer,
    seconds,
)
from chaos.planning.objective_outlook import objective_outlooks
from chaos.planning.pool_change import PoolOutcome, WhatIfChange, changed_pool, pool_outcome
from chaos.planning.pool_situation import PoolSituation
from command_line.output_format import OutputForm, output_option


@click.command(name="whatif")
@plan_options.pool_options
@click.option("--lose-engines", type=int, default=0, help="Lose this number of engines, the fastest first.")
@click.option(
    "--lose-zone", "lose_zones", multiple=True, metavar="ZONE", help="Lose all engines of a zone (repeatable)."
)
@click.option("--load-times", type=float, default=1.0, help="Multiply the arrivals by this factor, e.g. 2.")
@click.option(
    "--slower-times", type=float, default=1.0, help="Multiply the service time by this factor, e.g. 1.5."
)
@click.option(
    "--max-wait",
    "wait_s",
    type=plan_options.duration,
    metavar="DURATION",
    help="Wait the admission limit allows. [default: as measured, else 2s]",
)
@click.option("--no-ceiling", is_flag=True, help="Assume no admission limit: refuse nothing.")
@click.option(
    "--shed",
    type=plan_options.share,
    metavar="SHARE",
    default="0.1%",
    show_default=True,
    help="Maximum share of refused requests for exit code 0.",
)
@output_option()
@plan_options.plot_option
def command(
    *,
    lose_engines: int,
    lose_zones: tuple[str, ...],
    load_times: float,
    slower_times: float,
    wait_s: float | None,
    no_ceiling: bool,
    shed: float,
    output: OutputForm,
    plot: Path | None,
    **asked: Any,
) -> int:
    """Predict the effect of lost engines, lost zones, more load or slower engines on a pool.

    Numbers come from live telemetry, from a recording at its busiest, or from the command line. All changes happen
    at once.

    Objectives of the pool and of routes to it (spec.objectives) are judged too.

    Exit code: 0 if at most --shed is refused, waits are finite and objectives are kept, 1 if not, 2 for invalid or
    missing numbers.
    """
    plot = plot_path(plot)
    change = WhatIfChange(
        lose_engines=lose_engines, lose_zones=lose_zones, load_times=load_times, slower_times=slower_times
    )
    if change.nothing:
        raise click.UsageError("missing change: --lose-engines, --lose-zone, --load-times or --slower-times")
    pool = plan_options.with_ceiling(plan_options.situation(**asked), wait_s, none=no_ceiling)
    then = changed_pool(pool, change)
    before, after = pool_outcome(pool), pool_outcome(then)
    objectives = {"before": objective_outlooks(pool), "after": objective_outlooks(then)}
    answer = PlanAnswer(
        question=f"{pool.pool or 'A fleet'} with {_named(change)}",
        data={
            "pool": pool.pool,
            "source": pool.source,
            "change": asdict(change),
            "max_wait_s": pool.max_wait_s,
            "method": "M/M/c/K" if pool.max_wait_s is not None else "M/M/c",
            "before": asdict(before),
            "after": asdict(after),
            "objectives": {name: [asdict(one) for one in found] for name, found in objectives.items()},
        },
        grids=(_grid(before, after), *objectives_grid(objectives)),
        notes=(*_notes(pool, then, after), *objectives_notes(objectives)),
        yes=after.refused <= shed
        and after.wait_mean_s != float("inf")
        and all(one.kept is not False for one in objectives["after"]),
        draw=lambda axes: _draw(axes, pool, then),
    )
    return print_answer(answer, output=output, plot=plot)


def _named(change: WhatIfChange) -> str:
    parts = [
        f"{change.lose_engines} engines lost" if change.lose_engines else "",
        f"{', '.join(change.lose_zones)} lost" if change.lose_zones else "",
        f"{change.load_times:g} times the load" if change.load_times != 1 else "",
        f"calls {change.slower_times:g} times as long" if change.slower_times != 1 else "",
    ]
    return ", ".join(one for one in parts if one)


def _grid(before: PoolOutcome, after: PoolOutcome) -> AnswerGrid:
    rows = (
        ("engines", *(str(one.engines) for one in (before, after))),
        ("slots", *(number(one.slots) for one in (before, after))),
        ("service time", *(seconds(one.service_s) for one in (before, after))),
        ("arrivals/s", *(number(one.arrivals_per_s) for one in (before, after))),
        ("demand over capacity", *(f"{100 * one.pressure:.4g} %" for one in (before, after))),
        ("slots in use", *(percent(one.utilization) for one in (before, after))),
        ("in flight (Little)", *(number(one.in_flight) for one in (before, after))),
        ("requests that wait", *(percent(one.waits) for one in (before, after))),
        ("mean wait", *(seconds(one.wait_mean_s) for one in (before, after))),
        ("refused", *(percent(one.refused) for one in (before, after))),
        ("answered/s", *(number(one.answered_per_s) for one in (before, after))),
    )
    return AnswerGrid(title="Steady state", columns=("measure", "before", "after"), rows=rows)


def _notes(pool: PoolSituation, then: PoolSituation, after: PoolOutcome) -> Iterator[str]:
    yield f"Numbers from {pool.source}."
    ejected = len(pool.engines) - len(pool.up)
    if ejected:
        yield f"Not counted: {ejected} engine{'s' * (ejected != 1)} not in rotation."
    if not then.up:
        yield "No engine is left: everything is refused."
    elif pool.max_wait_s is None and after.pressure >= 1:
        yield "Demand exceeds capacity without an admission limit: the queue grows without bound."
    elif after.pressure >= 1:
        yield (
            f"Demand exceeds capacity: {percent(after.refused)} is refused, and the mean wait is "
            f"{seconds(after.wait_mean_s)}."
        )
    if pool.max_wait_s is not None:
        yield (
            f"Admission limit: slots x (1 + {seconds(pool.max_wait_s)} / service time), over engines in rotation."
        )
    yield (
        "Assumes M/M/c/K in steady state: Poisson arrivals, exponential service times, one queue for all slots, "
        "no client retries. The transition is not modelled."
    )


def _draw(axes: Any, pool: PoolSituation, then: PoolSituation) -> None:
    reach = [0.5 + 0.02 * step for step in range(76)]
    for name, one in (("now", pool), ("then", then)):
        if not one.up:
            continue
        found = [
            pool_outcome(changed_pool(one, WhatIfChange(load_times=times / (one.arrivals_per_s or 1))))
            for times in _rates(pool, reach)
        ]
        axes.plot(_rates(pool, reach), [100 * (1 - each.refused) for each in found], label=f"answered, {name}")
        axes.axvline(one.arrivals_per_s, linestyle=":", color="black" if name == "now" else "grey")
    axes.set(xlabel="arrivals per second", ylabel="% answered", ylim=(0, 102))
    axes.legend()


def _rates(pool: PoolSituation, reach: list[float]) -> list[float]:
    return [pool.capacity_per_s * one for one in reach]
