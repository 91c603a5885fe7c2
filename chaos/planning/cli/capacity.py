"""``switchgear plan capacity``: utilization, headroom, and the loss of a zone."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from chaos.planning.availability import unavailability
from chaos.planning.cli import plan_options
from chaos.planning.cli.plan_answer import (
    AnswerGrid,
    PlanAnswer,
    money,
    number,
    objectives_grid,
    objectives_notes,
    percent,
    plot_path,
    print_answer,
    seconds,
    target,
)
from chaos.planning.fleet_capacity import FleetCapacity, Headroom, WaitPromise, fleet_capacity, spares_per_nine
from chaos.planning.objective_outlook import ObjectiveOutlook, objective_outlooks
from chaos.planning.pool_change import WhatIfChange, changed_pool
from chaos.planning.pool_situation import PoolSituation
from chaos.planning.queueing import SlotQueue, queue_stats
from chaos.planning.spare_engines import SpareEngines
from command_line.output_format import OutputForm, output_option

_NINES: Final = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@click.command(name="capacity")
@plan_options.pool_options
@plan_options.promise_options
@click.option("--availability", help="Share of time one engine is up; adds the cost of each nine.")
@click.option("--cost-per-hour", type=float, help="Price of one engine per hour.")
@click.option("--survive-zone", is_flag=True, help="Exit 0 only if the pool survives the loss of any one zone.")
@output_option()
@plan_options.plot_option
def command(
    *,
    wait_s: float,
    late: float,
    availability: str | None,
    cost_per_hour: float | None,
    survive_zone: bool,
    output: OutputForm,
    plot: Path | None,
    **asked: Any,
) -> int:
    """Compute the headroom of a pool: the load at which --late of the requests wait longer than --max-wait.

    Numbers come from a running server, from a recording, or from --engines with --slots, --service-time and
    --arrivals. The last three also override measured values.

    Objectives of the pool and of routes to it (spec.objectives) are judged too, with the admission limit measured.

    Exit code: 0 if the wait target and objectives are met, 1 if not, 2 for invalid or missing numbers.
    """
    plot, promise = plot_path(plot), plan_options.promise(wait_s, late)
    pool = plan_options.situation(**asked)
    found = fleet_capacity(pool, promise)
    bought = (
        spares_per_nine(found.need, unavailability(availability), _NINES, cost_per_hour=cost_per_hour)
        if availability is not None
        else ()
    )
    now, without_zone = objective_outlooks(pool), _without_zone(pool)
    judged = [*now, *(one for outlooks in without_zone.values() for one in outlooks if survive_zone)]
    objectives = {"now": now, **{f"without {zone}": outlooks for zone, outlooks in without_zone.items()}}
    answer = PlanAnswer(
        question=f"Capacity of {pool.pool or 'a fleet'}",
        data={
            "pool": pool.pool,
            "source": pool.source,
            "promise": asdict(promise),
            **asdict(found),
            "kept": found.whole.kept,
            "objectives": {
                "now": [asdict(one) for one in now],
                "without_zone": {
                    zone: [asdict(one) for one in outlooks] for zone, outlooks in without_zone.items()
                },
            },
            "nines": [{**asdict(one), "attained": one.attained, "more": more} for one, more in bought],
        },
        grids=(*_grids(found, bought, promise), *objectives_grid(objectives)),
        notes=(*_notes(pool, found), *objectives_notes(objectives)),
        yes=found.whole.kept
        and (not survive_zone or all(one.kept for one in found.without_zone))
        and all(one.kept is not False for one in judged),
        draw=lambda axes: _draw(axes, pool, found, promise),
    )
    return print_answer(answer, output=output, plot=plot)


def _without_zone(pool: PoolSituation) -> dict[str, tuple[ObjectiveOutlook, ...]]:
    """Objectives by lost zone; empty with one zone."""
    zones = pool.zones if len(pool.zones) > 1 else ()
    return {zone: objective_outlooks(changed_pool(pool, WhatIfChange(lose_zones=(zone,)))) for zone in zones}


def _grids(
    found: FleetCapacity, bought: tuple[tuple[SpareEngines, int], ...], promise: WaitPromise
) -> Iterator[AnswerGrid]:
    yield AnswerGrid(
        title=f"At most {percent(promise.late)} waiting longer than {seconds(promise.wait_s)}",
        columns=(
            "lost zone",
            "engines",
            "slots",
            "demand",
            "in flight",
            "waiting",
            "late",
            "mean wait",
            "max arrivals",
            "headroom",
        ),
        rows=tuple(_room(one) for one in (found.whole, *found.without_zone)),
    )
    if bought:
        yield AnswerGrid(
            title=f"Cost of each nine, on top of the {found.need} engines needed",
            columns=("target", "spares", "added", "availability", "cost/month"),
            rows=tuple(
                (
                    target(one.allowed or 0),
                    str(one.spares),
                    f"+{more}",
                    percent(one.attained),
                    money(one.cost_per_month),
                )
                for one, more in bought
            ),
        )


def _room(one: Headroom) -> tuple[str, ...]:
    now = one.now
    return (
        one.name,
        str(now.engines),
        number(now.slots),
        percent(now.pressure) if now.pressure < 1 else f"{100 * now.pressure:.3g} %",
        number(now.in_flight),
        percent(now.waits),
        percent(now.late),
        seconds(now.wait_mean_s),
        f"{number(one.most_arrivals_per_s)}/s",
        f"{100 * one.head_room:+.3g} %",
    )


def _notes(pool: PoolSituation, found: FleetCapacity) -> Iterator[str]:
    yield f"Numbers from {pool.source}."
    yield (
        f"Little's law: {number(pool.arrivals_per_s)} requests/s of {seconds(pool.service_s)} each keep "
        f"{number(pool.arrivals_per_s * pool.service_s)} of {number(pool.slots)} slots busy."
    )
    each, ready = number(found.each_slots), len(pool.up)
    yield f"The wait target needs {found.need} engines of {each} slots; {ready} are in rotation."
    if found.need_with_zone_lost is not None:
        zones = len(pool.zones)
        yield f"To survive the loss of one of {zones} zones, it needs {found.need_with_zone_lost}, spread evenly."
    ejected = len(pool.engines) - len(pool.up)
    if ejected:
        yield f"Not counted: {ejected} engine{'s' * (ejected != 1)} not in rotation."
    yield (
        "Waits follow M/M/c: Poisson arrivals, exponential service times, one queue for all slots, no admission "
        "limit."
    )


def _draw(axes: Any, pool: PoolSituation, found: FleetCapacity, promise: WaitPromise) -> None:
    queue = pool.queue()
    if queue is None:
        return
    top = max(queue.servers / queue.service_s, pool.arrivals_per_s) * 1.02
    arrivals = np.linspace(0.5 * top, top, 120)
    for name, servers in ((f"all {len(pool.up)} engines", queue.servers), *_left(found)):
        if servers < 1:
            continue
        late = [
            queue_stats(
                SlotQueue(servers=servers, service_s=queue.service_s, arrivals_per_s=float(one)),
                patience_s=promise.wait_s,
            ).late
            for one in arrivals
        ]
        axes.plot(arrivals, [100 * one for one in late], label=name)
    axes.axvline(pool.arrivals_per_s, color="black", linestyle=":", label="now")
    axes.axhline(100 * promise.late, color="grey", linestyle="--", label="wait target")
    axes.set(xlabel="arrivals per second", ylabel=f"% waiting over {seconds(promise.wait_s)}", ylim=(0, 100))
    axes.legend()


def _left(found: FleetCapacity) -> tuple[tuple[str, int], ...]:
    """Show the worst zone only; the others lie between it and the whole fleet."""
    if not found.without_zone:
        return ()
    worst = min(found.without_zone, key=lambda one: one.most_arrivals_per_s)
    return ((f"without {worst.name}", int(worst.now.slots)),)
