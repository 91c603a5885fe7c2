"""``switchgear plan whatif``: a pool as it is now, or was at its busiest, and with something happening to it."""

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
    percent,
    plot_path,
    print_answer,
    seconds,
)
from chaos.planning.pool_change import PoolOutcome, WhatIfChange, changed_pool, pool_outcome
from chaos.planning.pool_situation import PoolSituation


@click.command(name="whatif")
@plan_options.pool_options
@click.option("--lose-engines", type=int, default=0, help="So many engines gone, those that do most.")
@click.option("--lose-zone", "lose_zones", multiple=True, metavar="ZONE", help="All of a zone gone; repeatable.")
@click.option("--load-times", type=float, default=1.0, help="So many times the arrivals, such as 2.")
@click.option("--slower-times", type=float, default=1.0, help="Calls take so many times as long, such as 1.5.")
@click.option(
    "--max-wait",
    "wait_s",
    type=plan_options.duration,
    metavar="DURATION",
    help="Wait the ceiling allows; else as measured, or 2s.",
)
@click.option("--no-ceiling", is_flag=True, help="As without admission control: nothing is refused.")
@click.option(
    "--shed",
    type=plan_options.share,
    metavar="SHARE",
    default="0.1%",
    show_default=True,
    help="Share that may be refused at most.",
)
@plan_options.json_option
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
    as_json: bool,
    plot: Path | None,
    **asked: Any,
) -> int:
    """What would become of a pool if engines or a zone were lost, more came, or engines were slower.

    Live telemetry, a recording at its busiest, or the numbers given. Everything named happens at once.

    Exit code: 0 when at most --shed is refused then and waits have an end, 1 when not, 2 for numbers that cannot
    be or cannot be had.
    """
    plot = plot_path(plot)
    change = WhatIfChange(
        lose_engines=lose_engines, lose_zones=lose_zones, load_times=load_times, slower_times=slower_times
    )
    if change.nothing:
        raise click.UsageError("name what happens: --lose-engines, --lose-zone, --load-times or --slower-times")
    pool = plan_options.with_ceiling(plan_options.situation(**asked), wait_s, none=no_ceiling)
    then = changed_pool(pool, change)
    before, after = pool_outcome(pool), pool_outcome(then)
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
        },
        grids=(_grid(before, after),),
        said=tuple(_said(pool, then, after)),
        yes=after.refused <= shed and after.wait_mean_s != float("inf"),
        draw=lambda axes: _draw(axes, pool, then),
    )
    return print_answer(answer, as_json=as_json, plot=plot)


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
        ("arrivals a second", *(number(one.arrivals_per_s) for one in (before, after))),
        ("asked over what can be served", *(f"{100 * one.pressure:.4g} %" for one in (before, after))),
        ("slots in use", *(percent(one.utilization) for one in (before, after))),
        ("in flight (Little)", *(number(one.in_flight) for one in (before, after))),
        ("wait for a slot", *(percent(one.waits) for one in (before, after))),
        ("mean wait", *(seconds(one.wait_mean_s) for one in (before, after))),
        ("refused", *(percent(one.refused) for one in (before, after))),
        ("answered a second", *(number(one.answered_per_s) for one in (before, after))),
    )
    return AnswerGrid(title="In the long run", columns=("", "now", "then"), rows=rows)


def _said(pool: PoolSituation, then: PoolSituation, after: PoolOutcome) -> Iterator[str]:
    yield f"Numbers from {pool.source}."
    out = len(pool.engines) - len(pool.up)
    if out:
        yield f"{out} engines are out already and stay so."
    if not then.up:
        yield "No engine is left: everything is refused."
    elif pool.max_wait_s is None and after.pressure >= 1:
        yield "More comes than can be served and nothing is refused: the queue grows without end."
    elif after.pressure >= 1:
        yield (
            f"More comes than can be served: {percent(after.refused)} is refused, which keeps the mean wait at "
            f"{seconds(after.wait_mean_s)}."
        )
    if pool.max_wait_s is not None:
        yield (
            f"The ceiling is slots x (1 + {seconds(pool.max_wait_s)} / service time), as the control plane sets "
            "it for the engines that are in."
        )
    yield (
        "By formula (M/M/c/K): Poisson arrivals, exponential answer times, one queue for all slots, clients that "
        "do not ask again, and the long run, not the minutes of the change."
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
